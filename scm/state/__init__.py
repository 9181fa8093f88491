"""The control plane's state: its types, their tables in memory, and their rows on disk."""
