"""Conversion of wire messages, files and errors to values and back."""
