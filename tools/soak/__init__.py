"""A real cluster of processes under load and faults, for as long as one likes."""
