"""The state: the nouns, their tables in memory, their rows on disk."""
