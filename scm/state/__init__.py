"""The control plane's state: its types, the tables in memory, and the rows on disk."""
