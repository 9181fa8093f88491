"""The snapshots that the Spark job reads: their export and their upload."""
