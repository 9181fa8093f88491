"""Certificates: the identities in them, their renewal, and an authority that issues them."""
