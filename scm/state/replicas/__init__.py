"""The replicas in memory and on disk, as rows of numbers because there are millions."""
