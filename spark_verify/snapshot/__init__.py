"""A snapshot of the cluster: its manifest, its files, and what no row of it may say."""
