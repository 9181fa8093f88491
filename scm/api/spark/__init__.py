"""The exchange with Spark: snapshots, their upload, and the loop that applies its plans."""
