"""The options of the agent: declared once, read from files, explained. How people write values."""
