"""Web pages of all programs: the templates that they share, and the words for a state."""
