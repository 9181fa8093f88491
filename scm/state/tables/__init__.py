"""The state in memory: one table per noun, with the indexes that calls need."""
