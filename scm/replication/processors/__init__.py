"""Parts of the replication manager: its queue, rebuilds of shards, and removals of replicas."""
