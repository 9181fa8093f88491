"""The agent's options: declaration, loading, and reference documentation."""
