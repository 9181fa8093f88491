"""How long a thread of this process runs Python before others that want to get their turn."""

import sys
from typing import Final

SWITCH_S: Final = 0.0005  # Python's own is 5 ms, for each thread of a storm that a read waits for


def take_short_turns() -> None:
    """Let threads change places often.

    A thread that holds a lock and waits for the interpreter, as after each call into LMDB, waits
    for a turn of each thread that computes, and so does everybody who wants that lock: with
    Python's own turns, some holds of the control plane's lock took more than 50 ms while a page of
    ten million containers was made (`make bench NAME=page`).
    """
    sys.setswitchinterval(SWITCH_S)
