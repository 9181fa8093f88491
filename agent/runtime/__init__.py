"""The only code with threads."""
