"""Nodes, their replicas, and the commands they have been given: who is there, with what."""
