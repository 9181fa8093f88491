"""Metrics, status, health and the page of an agent."""
