"""Volumes of Apache Ozone datanodes, read as they lie on disk and never written to."""
