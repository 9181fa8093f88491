"""Calls of one kind on the wire: parsed, and answered."""
