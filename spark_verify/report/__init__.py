"""Output of a run: summary, text report, HTML page, and SQL views of the tables."""
