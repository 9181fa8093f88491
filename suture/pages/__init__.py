"""The common parts of the web pages of all programs: templates, and the words for states."""
