"""Final safety checks before a replica is deleted: for copies, origins and shards. Pure."""
