"""A volume: its owner, its presence, and its health."""
