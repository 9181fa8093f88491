"""Parses the rows of a replica, and groups blocks and chunks that a scan reads together."""
