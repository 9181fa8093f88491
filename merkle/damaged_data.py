"""The error of this package: stored or received bytes that fail their own check."""


class DamagedData(ValueError):
    """Bytes that fail their own check. The message names the damaged object, its location and the
    fault.

    No part of a damaged row or tree is used, and it never counts as empty.
    """
