"""Reads the data of a replica and verifies it."""
