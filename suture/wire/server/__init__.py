"""The common parts of every server: addresses, limits, access control and health checks."""
