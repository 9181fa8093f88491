"""Parts of the replication manager: its queue, shards to rebuild, and replicas to remove."""
