"""Output of a run: its summary, text report, HTML page, and SQL views of the tables."""
