"""A container from its first writer to its last delete."""
