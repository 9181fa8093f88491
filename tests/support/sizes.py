"""Sizes of tests that repeat something: enough for each guard usually, and many more at night."""

import os


def size(usual: int, *, nightly: int) -> int:
    """Return the usual size, or that of `make nightly`."""
    return nightly if "SUTURE_NIGHTLY" in os.environ else usual
