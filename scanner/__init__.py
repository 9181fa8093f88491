"""Reading one replica and judging it."""
