"""The agent's options: declaration, loading, and generated documentation."""
