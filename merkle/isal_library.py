"""Loads Intel's ISA-L, for erasure codes and for the CRC-32 of data that Ozone's clients write.

The wheel of pyeclib contains the library. If pyeclib was built from source, the library of the
system is used.
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
    """Return the library, loaded on first use; None if it is not installed."""
    for path in _candidates():
        with suppress(OSError):
            return ctypes.CDLL(path)
    return None


def _candidates() -> Iterator[str]:
    """Yield possible places of the library: beside pyeclib, then the system's."""
    for file in metadata.files("pyeclib") or ():
        if file.name.startswith(LIBRARY):
            yield str(file.locate())
    found = ctypes.util.find_library(LIBRARY.removeprefix("lib"))
    if found is not None:
        yield found
