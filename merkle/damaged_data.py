"""The error that is raised for stored or received bytes that fail their own checksum or format
check."""


class DamagedData(ValueError):
    """Raised for bytes that fail their own checksum or format check.

    The message names the damaged object, its location and the fault. Callers must not use any part
    of a damaged row or tree, and must not treat it as empty.
    """
