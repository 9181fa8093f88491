"""Replicas that move so that nodes are about equally full."""
