"""Simulates a whole cluster in one process; see docs/SIMULATION.md."""
