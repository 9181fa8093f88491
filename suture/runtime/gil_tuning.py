"""Interpreter settings of a server: the switch interval of threads, and garbage collection.

A full garbage collection stops all threads while it visits objects.
"""

import gc
import sys
from typing import Any, Final

SWITCH_S: Final = 0.0005  # Python's default of 5 ms delays a read by 5 ms for each busy thread

OBJECTS_MAX: Final = 50_000
"""Objects that a full collection may leave unfrozen; visiting them takes about 15 ms."""


def set_switch_interval() -> None:
    """Reduce the interpreter's switch interval, so that threads wait less for the GIL.

    A thread that holds a lock needs the GIL again after each call into LMDB. It then waits for a
    turn of every computing thread, and so do all threads that need its lock. With Python's default,
    the control plane's lock was held for more than 50 ms at times while a page of ten million
    containers was made (`make bench NAME=page`).
    """
    sys.setswitchinterval(SWITCH_S)


def freeze_what_stays() -> None:
    """Exclude the present objects from garbage collection (`gc.freeze`). Later, also exclude the
    objects that survive full collections, once there are many. Call it when the data read at the
    start is in memory.

    A full collection visits every object that refers to others. With a million rows added after the
    start it took 0.4 s, with the control plane's lock held (`make bench NAME=judge`). Frozen
    objects are not visited. They are freed as usual when nothing refers to them, but a cycle of
    frozen objects is never freed. Therefore objects are frozen only once per `OBJECTS_MAX`
    surviving objects.
    """
    gc.freeze()
    if _freeze_if_many not in gc.callbacks:
        gc.callbacks.append(_freeze_if_many)


def _freeze_if_many(phase: str, collected: dict[str, Any]) -> None:
    is_full = phase == "stop" and collected["generation"] == 2
    if is_full and len(gc.get_objects(generation=2)) > OBJECTS_MAX:
        gc.freeze()
