"""The health check of containers: applies the rules of `health/` to the state."""
