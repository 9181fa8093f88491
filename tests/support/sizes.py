"""Numbers of repetitions in tests: just enough to test each guard, and many more at night."""

import os


def size(usual: int, *, nightly: int) -> int:
    """Return `nightly` in a run of `make nightly`, otherwise `usual`."""
    return nightly if "SUTURE_NIGHTLY" in os.environ else usual
