"""What the replication manager repairs by: what waits, shards to rebuild, replicas to remove."""
