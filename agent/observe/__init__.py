"""Metrics, status, health check and status page of an agent."""
