"""The replication manager, which orders the commands that repair containers, and the balancer."""
