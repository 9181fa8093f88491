"""Metrics, status, health and the status page of an agent."""
