"""Tables of the state in memory, one per type, with the indexes that calls need."""
