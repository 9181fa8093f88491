"""Nodes, their replicas, and the commands sent to them."""
