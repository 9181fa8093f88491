"""Conversion of wire messages and of errors."""
