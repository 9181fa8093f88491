"""Access to volumes of Apache Ozone datanodes: read in place, never written to."""
