"""Loads Intel's library ISA-L, which computes erasure codes and the CRC-32 of Ozone's clients.

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
    """Return the library, which is loaded on the first call. Return None if it is not installed."""
    for path in _candidates():
        with suppress(OSError):
            return ctypes.CDLL(path)
    return None


def _candidates() -> Iterator[str]:
    """Yield possible paths of the library: the path in the package pyeclib, then the path of the
    system's library."""
    for file in metadata.files("pyeclib") or ():
        if file.name.startswith(LIBRARY):
            yield str(file.locate())
    found = ctypes.util.find_library(LIBRARY.removeprefix("lib"))
    if found is not None:
        yield found
