"""A disk that accepts no writes, like a full one, during a block of code."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unwritable() -> Iterator[None]:
    """Let each write of this process to a file fail: the kernel refuses it (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
