"""Recovery of volumes at a start, before they are served, and fsck, which only reads."""
