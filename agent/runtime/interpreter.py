"""How the interpreter of a process that serves divides its time: among threads, and between these
and the garbage collector, which stops them all while it looks at objects."""

import gc
import sys
from typing import Any, Final

SWITCH_S: Final = 0.0005  # Python's own is 5 ms, for each thread of a storm that a read waits for

OBJECTS_MAX: Final = 50_000
"""That a full collection may find and leave to the next; it takes some 15 ms to look at them."""


def take_short_turns() -> None:
    """Let threads change places often.

    A thread that holds a lock and waits for the interpreter, as after each call into LMDB, waits
    for a turn of each thread that computes, and so does everybody who wants that lock: with
    Python's own turns, some holds of the control plane's lock took more than 50 ms while a page of
    ten million containers was made (`make bench NAME=page`).
    """
    sys.setswitchinterval(SWITCH_S)


def freeze_what_stays() -> None:
    """Freeze the objects that there are, and from now on those that full collections leave, if
    they are many. Call it when what is read at the start is in memory.

    A full collection looks at every object that refers to others. Where a million rows came after
    the start it took 0.4 s, with the control plane's lock held (`make bench NAME=judge`). What is
    frozen it passes over. That is freed as before once nothing refers to it, but a circle of frozen
    objects would stay for ever: so it is done once for each `OBJECTS_MAX` that stay.
    """
    gc.freeze()
    if _freeze_if_many not in gc.callbacks:
        gc.callbacks.append(_freeze_if_many)


def _freeze_if_many(phase: str, collected: dict[str, Any]) -> None:
    is_full = phase == "stop" and collected["generation"] == 2
    if is_full and len(gc.get_objects(generation=2)) > OBJECTS_MAX:
        gc.freeze()
