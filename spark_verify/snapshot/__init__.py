"""Reading of the job's input: the manifest, the tables and the reports, and checks of their
rows."""
