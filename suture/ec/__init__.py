"""Erasure coding without disk, network or clock: schemes, geometry, the codec, stripe verdicts."""
