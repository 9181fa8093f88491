"""Reads the stripes of erasure-coded blocks: cells are read from several shards, or computed."""
