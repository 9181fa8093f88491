"""Functions on DataFrames that compute the tables of a result from the tables of a snapshot."""
