"""Runs a program of the cluster, and records the state of its threads every few seconds.

    python -m tools.soak.child PARENT agent.main --config ...

The kernel's number of threads does not show leaks. A pool creates a thread when all its threads are
busy, and keeps the thread. Therefore, the number grows for hours, whenever more work runs at once
than before. This program records the name of each thread, and whether it is an idle worker of a
pool.
"""

import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, thread
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

from agent.commands import pool
from agent.commands.command_queue import TaskLimits
from agent.commands.pool import TaskPool
from tools.demo import child
from tools.demo.cluster import Running, launched

EVERY_S: Final = 5.0
DIRECTORY: Final = "SOAK_THREADS"  # environment variable: the directory of the files
AT_REST: Final = {(thread.__file__, "_worker"), (pool.__file__, "_next")}
NUMBER: Final = re.compile(r"[-_]?\d+( \(.*\))?$")


def main() -> None:
    """Watch the threads of this process, then run the named program."""
    path = path_of(Path(os.environ[DIRECTORY]), os.getpid())
    bounds: dict[str, int] = {}
    note_pools(bounds)
    watcher = threading.Thread(target=watch, args=(path, bounds), name="watcher", daemon=True)
    watcher.start()
    child.main()


def path_of(directory: Path, pid: int) -> Path:
    """Return the path of a process's thread record."""
    return directory / f"{pid}.json"


def launched_watched(directory: Path, words: Sequence[str], log: IO[bytes]) -> Running:
    """Start a program of the cluster through this module, so that its threads are recorded in
    `directory`."""
    return launched(words, log, module=__name__, environment={DIRECTORY: str(directory)})


def note_pools(bounds: dict[str, int]) -> None:
    """Make every pool of this process record its maximum number of threads, by name."""
    made, made_tasks = ThreadPoolExecutor.__init__, TaskPool.__init__

    def noted(self: ThreadPoolExecutor, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        facts = vars(self)
        note(bounds, facts["_thread_name_prefix"], facts["_max_workers"])

    def noted_tasks(
        self: TaskPool, limits: TaskLimits, *, name: str = "task", **named: Any
    ) -> None:
        note(bounds, name, limits.running_max)
        made_tasks(self, limits, name=name, **named)

    ThreadPoolExecutor.__init__ = noted  # type: ignore[method-assign]
    TaskPool.__init__ = noted_tasks  # type: ignore[method-assign]


def note(bounds: dict[str, int], name: str, bound: int) -> None:
    """Record the maximum number of threads of a pool. For several pools with one name, keep the
    largest maximum, not the sum: two such pools at the same time would be a leak."""
    name = kind_of(name)
    bounds[name] = max(bound, bounds.get(name, 0))


def kind_of(name: str) -> str:
    """Return the name of a thread without its number."""
    return NUMBER.sub("", name)


def is_at_rest(frame: FrameType | None) -> bool:
    """Return True if a thread at this frame is an idle worker of a pool."""
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        frame = frame.f_back
    return frame is not None and (frame.f_code.co_filename, frame.f_code.co_name) in AT_REST


def told(bounds: Mapping[str, int]) -> dict[str, object]:
    """Return the numbers of all threads and of idle threads of this process by kind, and the
    maximums of the pools."""
    frames = sys._current_frames()  # documented as for debugging, which this is
    threads = threading.enumerate()
    resting = (one for one in threads if is_at_rest(frames.get(one.ident or 0)))
    return {
        "threads": Counter(kind_of(one.name) for one in threads),
        "resting": Counter(kind_of(one.name) for one in resting),
        "bounds": bounds,
    }


def watch(path: Path, bounds: Mapping[str, int]) -> None:
    """Record the threads for as long as the process lives."""
    pause, draft = threading.Event(), path.with_suffix(".new")
    while not pause.wait(EVERY_S):
        draft.write_text(json.dumps(told(dict(bounds))))
        draft.replace(path)


if __name__ == "__main__":
    main()
