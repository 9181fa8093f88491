"""Renders the cluster's web pages. Each function takes values and returns HTML."""
