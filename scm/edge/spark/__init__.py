"""What Spark is given, and what is done with its plans: snapshots, their place, the loop."""
