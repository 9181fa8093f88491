"""The replication manager: what the judge finds wrong becomes commands; and the balancer."""
