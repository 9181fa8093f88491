"""Observability: log events, metrics, status, health and pages."""
