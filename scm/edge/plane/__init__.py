"""The control plane as one object: what it consists of, and its calls by who makes them."""
