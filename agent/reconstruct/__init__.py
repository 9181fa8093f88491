"""Rebuilds lost shards of an erasure-coded container from those that are left."""
