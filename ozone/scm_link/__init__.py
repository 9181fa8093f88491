"""Runs an agent under a storage container manager of Apache Ozone."""
