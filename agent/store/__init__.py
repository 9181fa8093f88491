"""The only code that touches volumes."""
