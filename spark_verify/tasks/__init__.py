"""Functions on Arrow data that classify containers. Spark calls them for each partition."""
