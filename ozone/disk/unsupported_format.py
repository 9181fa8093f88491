"""The exception for data in a format of Ozone that this release does not know."""


class UnsupportedFormat(Exception):
    """Raised for data in an unknown format.

    The data is reported as not checked, and not changed.
    """
