"""A soak test: a real cluster of processes under load and faults, for any time."""
