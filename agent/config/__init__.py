"""The agent's options: declaration, loading, reference documentation, and units."""
