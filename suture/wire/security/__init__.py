"""Certificates: their identities, their renewal, and an authority that issues them."""
