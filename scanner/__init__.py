"""Scans a replica: reads its data and verifies it."""
