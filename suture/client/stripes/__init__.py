"""Stripes of erasure-coded blocks: cells that are read from several shards, or computed."""
