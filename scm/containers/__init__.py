"""The life of a container, from its first writer to its last delete."""
