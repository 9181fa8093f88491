"""Certificates: whose they are, that they are renewed, and an authority that issues them."""
