"""Stores files and reads them back. `client` and `writer` are what others call; the rest is how."""
