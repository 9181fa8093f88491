"""A run in numbers, in words, and as a page."""
