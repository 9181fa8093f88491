"""The exception for data in a format of Ozone that this release does not know."""


class UnsupportedFormat(Exception):
    """Raised for data to leave alone and report: it may be whole, but cannot be judged here."""
