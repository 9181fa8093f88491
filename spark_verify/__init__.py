"""Spark job that compares the checksums of all replicas of a cluster, and plans their repair."""
