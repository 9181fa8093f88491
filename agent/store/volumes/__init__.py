"""One volume: whose it is, that it is there, and that it works."""
