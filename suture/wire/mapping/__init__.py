"""Converts messages, files and errors to values and back."""
