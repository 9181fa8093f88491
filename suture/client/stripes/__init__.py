"""Stripes of erasure-coded blocks: cells are read from several shards, or computed."""
