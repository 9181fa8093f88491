"""The exception for data in a format of Ozone that this release does not know."""


class UnsupportedFormat(Exception):
    """Raised for data in an unknown format, which is reported without a verdict and not changed."""
