"""Erasure coding without disk, network or clock: schemes, geometry, the code itself, verdicts."""
