"""The replicas in memory and on disk: rows of numbers, because there are millions."""
