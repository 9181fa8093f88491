"""Reconstruction of lost shards of an erasure-coded container from the remaining shards."""
