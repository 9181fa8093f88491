"""Volumes: identity, format, lock, service mode and health."""
