"""The error of this package: stored or received bytes that fail their own check."""


class DamagedData(ValueError):
    """Bytes that fail their own check. The message names what is damaged, where and how.

    Nothing of the value was used: a damaged row or tree is never read in part, and never taken for
    an empty one.
    """
