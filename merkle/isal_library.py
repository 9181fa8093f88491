"""Intel's ISA-L, where it is: for erasure codes, and for the CRC-32 of what Ozone's clients write.

It comes with pyeclib's wheel; where pyeclib was built from source, the system's own is taken.
"""

import ctypes
import ctypes.util
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Final

LIBRARY: Final = "libisal"


@cache
def isal_library() -> ctypes.CDLL | None:
    """Return the library, loaded when first asked for; None where there is none."""
    for path in _candidates():
        with suppress(OSError):
            return ctypes.CDLL(path)
    return None


def _candidates() -> Iterator[str]:
    """Yield where the library may be: beside pyeclib, then where the system has it."""
    for file in metadata.files("pyeclib") or ():
        if file.name.startswith(LIBRARY):
            yield str(file.locate())
    found = ctypes.util.find_library(LIBRARY.removeprefix("lib"))
    if found is not None:
        yield found
