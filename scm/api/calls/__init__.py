"""The control plane as one object: its components, and its calls grouped by caller."""
