"""The pipeline as DataFrames: from the tables of a snapshot to those of a result."""
