"""Opens the descriptors 0 to 2 if the parent process has closed them."""

import os
import sys
from typing import Final

STREAMS: Final = {1: "stdout", 2: "stderr"}


def open_standard_streams() -> None:
    """Open /dev/null for each of the descriptors 0 to 2 that is closed.

    Call the function before the process opens anything else. Otherwise, the next file or socket
    would get descriptor 1, and the output of libraries would be written into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one
    for descriptor, name in STREAMS.items():
        if getattr(sys, name) is None:  # Python found the descriptor closed
            stream = os.fdopen(descriptor, "w", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)
