"""Arrow functions for the judge, which Spark runs on each partition of a snapshot."""
