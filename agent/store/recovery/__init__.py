"""Recovery at a start, before anything is served; and fsck, which only reads."""
