"""Lets an agent act as a datanode of Apache Ozone's storage container manager (SCM)."""
