"""Clusters with seeded faults, to try a verification on."""
