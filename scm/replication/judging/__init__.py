"""What is wrong with containers: the state as columns, and the judge asked about it."""
