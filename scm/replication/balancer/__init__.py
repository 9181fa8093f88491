"""Balancing: moves replicas so that nodes are about equally full."""
