"""DataFrame transformations from the tables of a snapshot to the tables of a result."""
