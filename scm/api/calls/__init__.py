"""The control plane as one object: its parts, and its calls grouped by caller."""
