"""A snapshot of the cluster: its manifest, its files, and checks of its rows."""
