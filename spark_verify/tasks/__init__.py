"""What is done for each part and partition of a snapshot, and where: here or on Spark."""
