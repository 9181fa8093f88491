"""Interpreter settings of a server: the switch interval of threads, and the garbage collection.

A complete garbage collection stops all threads while it visits objects.
"""

import gc
import sys
from typing import Any, Final

SWITCH_S: Final = 0.0005  # Python's default of 5 ms delays a read by 5 ms for each busy thread

OBJECTS_MAX: Final = 50_000
"""If more objects than this survive a complete garbage collection, they are frozen. To visit this
many objects takes about 15 ms."""


def set_switch_interval() -> None:
    """Reduce the interpreter's switch interval, so that threads wait less for the interpreter's
    lock (GIL).

    After each call of LMDB, a thread needs the GIL again, and waits for one switch interval per
    computing thread. If it holds another lock, all threads that need that lock wait, too. With
    Python's default, the control plane's lock was at times held for more than 50 ms while a page of
    ten million containers was computed (`make bench NAME=page`).
    """
    sys.setswitchinterval(SWITCH_S)


def freeze_what_stays() -> None:
    """Exclude the existing objects from garbage collection (`gc.freeze`).

    Later, when many new objects have survived complete collections, exclude them, too. Call the
    function when the data that is read at the start is in memory.

    A complete collection visits every object that refers to others. With a million rows added after
    the start, a collection took 0.4 s, during which the control plane's lock was held (`make bench
    NAME=judge`). Frozen objects are not visited. They are freed as usual when nothing refers to
    them, but a cycle of frozen objects is never freed. Therefore, objects are frozen only once per
    `OBJECTS_MAX` surviving objects.
    """
    gc.freeze()
    if _freeze_if_many not in gc.callbacks:
        gc.callbacks.append(_freeze_if_many)


def _freeze_if_many(phase: str, collected: dict[str, Any]) -> None:
    is_full = phase == "stop" and collected["generation"] == 2
    if is_full and len(gc.get_objects(generation=2)) > OBJECTS_MAX:
        gc.freeze()
