"""A whole cluster in one process; docs/SIMULATION.md says how."""
