"""The replication manager, which turns the judge's findings into commands, and the balancer."""
