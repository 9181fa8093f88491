"""Changes that operators and plans request: previews, their execution, and departures of nodes."""
