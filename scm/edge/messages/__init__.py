"""Parsers and response builders, one module per kind of call."""
