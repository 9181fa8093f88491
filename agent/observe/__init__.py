"""What the outside may see: log events, status."""
