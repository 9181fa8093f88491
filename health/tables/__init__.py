"""Columns of the tables that the control plane and the Spark job exchange."""
