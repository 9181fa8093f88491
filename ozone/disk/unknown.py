"""What this program does not know: made by another Ozone than those whose format it can read."""


class Unknown(Exception):
    """Leave it alone and say so: it may be whole, and nobody here can tell."""
