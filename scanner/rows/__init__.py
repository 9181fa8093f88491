"""Rows of a replica: which of its blocks and chunks are read and compared together."""
