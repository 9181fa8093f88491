"""The error of this package: stored or received bytes that fail their own check."""


class DamagedData(ValueError):
    """Bytes that fail their own check.

    The message names the damaged object, its location and the fault. The receiver uses no part of a
    damaged row or tree, and never treats the row or tree as empty.
    """
