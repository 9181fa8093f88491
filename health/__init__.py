"""Computes the health of containers, and the actions that repair them. No I/O."""
