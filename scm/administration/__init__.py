"""Changes that operators and plans request: their previews, their execution, and departures."""
