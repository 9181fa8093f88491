"""The tables of the state in memory, one per type of value, with their indexes."""
