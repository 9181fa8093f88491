"""Scanning: reads one replica and judges it."""
