"""The tasks of a run in processes of this machine, one a core: no cluster, no Spark, no Java.

    ranges of containers ─► processes that read and judge ─► what they counted
    or parts ─► processes that read ─► files of blobs ─► processes that judge ─► what they counted

The tasks are those that Spark is given (`distribution`), and so are the files they write, byte by
byte. What is exchanged lies in a directory that is this run's own.

A process ends when the one does that started it, in the middle of a task, too.
"""

import math
import multiprocessing
import os
import signal
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from spark_verify.errors import MORE_MEMORY, ProcessLost
from spark_verify.snapshot.ranges import ranges_of
from spark_verify.snapshot.snapshot_reading import Part
from spark_verify.tasks.distribution import Counted, added_up, judge_blobs, judge_range, read_blobs
from spark_verify.tasks.judging import Job

BYTES_PER_PROCESS: Final = 1 << 30
"""Memory of a task, of any kind and with its libraries: half of it was measured."""

ROOT: Final = Path("/")
"""Below it the kernel says what this process may use."""

Task = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function that takes these arguments and the job."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Where rows lie that travel from a part to a partition."""

    partition: int
    file: Path
    offset: int
    length_bytes: int

    def content(self) -> bytes:
        """Return the blob."""
        with self.file.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length_bytes)


def processes_here(root: Path = ROOT) -> int:
    """Return how many tasks this machine does at once: one a core that may be used, if the memory
    that may be used allows."""
    return max(1, min(cores_here(root), memory_here_bytes(root) // BYTES_PER_PROCESS))


def cores_here(root: Path = ROOT) -> int:
    """Return how many cores this process may use, a part of one as a whole one."""
    quotas = map(_quota_cores, _control_groups(root))
    return max(1, math.ceil(min([len(os.sched_getaffinity(0)), *quotas])))


def memory_here_bytes(root: Path = ROOT) -> int:
    """Return how much memory this process and its children may use together."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for group in _control_groups(root):
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # no such file, or the word for no limit
                found.append(int((group / name).read_text()))
    return min(found)


def _quota_cores(group: Path) -> float:
    with suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota = (group / "cpu.cfs_quota_us").read_text()
        if int(quota) > 0:
            return int(quota) / int((group / "cpu.cfs_period_us").read_text())
    return math.inf


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield where the limits of this process may stand: in its control groups, in those above, and
    in what a container sees in their place.

    Each controller of version 1 has a tree of its own; its line here has a name, that of version 2
    has none.
    """
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for tree in {controllers, *controllers.split(",")} if controllers else ("", "unified"):
                own = root / "sys/fs/cgroup" / tree / path.lstrip("/")
                yield from (own, *own.parents)


def run_in_processes(parts: Sequence[Part], job: Job, *, processes: int, exchange: Path) -> Counted:
    """Do all tasks; `exchange` is an empty directory. Raises what a task raised, and ProcessLost
    where a process died of something else."""
    blobs: defaultdict[int, list[Blob]] = defaultdict(list)
    counted: list[Counted] = []
    ranges = ranges_of(parts, partitions=job.layout.partitions)
    judging: list[Task] = [(judge_range, (i, ranges[i])) for i in range(len(ranges))]
    with _workers(processes, job) as workers:
        reading: list[Task] = (
            [] if ranges else [(_read, (i, parts[i], exchange)) for i in range(len(parts))]
        )
        for found in _each(workers, reading):
            for blob in found:
                blobs[blob.partition].append(blob)
        if not ranges:
            judging = [(_judge, (number, blobs[number])) for number in sorted(blobs) or [0]]
        for one in _each(workers, judging):
            counted = [added_up([*counted, one], job)]
    return counted[0]


def _read(number: int, part: Part, exchange: Path, job: Job) -> list[Blob]:
    path, found = exchange / f"{number:05d}", []
    with path.open("wb") as file:
        for partition, content in read_blobs(part, job):
            found.append(Blob(partition, path, file.tell(), len(content)))
            file.write(content)
    return found


def _judge(number: int, blobs: Sequence[Blob], job: Job) -> Counted:
    return judge_blobs(number, (blob.content() for blob in blobs), job)


@contextmanager
def _workers(count: int, job: Job) -> Iterator[list[Connection]]:
    """Yield connections to so many new processes; none of them runs afterwards."""
    context = multiprocessing.get_context("spawn")  # a fork would have the locks of Arrow's threads
    started = []
    try:
        for _ in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, job), daemon=True)
            process.start()
            theirs.close()
            started.append((process, mine))
        yield [mine for _, mine in started]
    finally:
        for process, mine in started:
            mine.close()
            process.terminate()
            process.join()


def _serve(connection: Connection, job: Job) -> None:
    """Do one task after the other, until nobody is there who asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process is told, too
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pa.set_cpu_count(1)
    while True:
        try:
            function, arguments = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer: tuple[Any, Exception | None] = function(*arguments, job), None
        except Exception as error:  # noqa: BLE001 -- raised where the task was given
            error.add_note(traceback.format_exc())
            answer = None, error
        with suppress(ConnectionError):
            connection.send(answer)


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, as it does without a word where it
    is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _each(workers: Sequence[Connection], tasks: Sequence[Task]) -> Iterator[Any]:
    """Do tasks, one a worker at a time; yield their answers in the order of the tasks."""
    waiting = iter(enumerate(tasks))
    busy: dict[Connection, int] = {}
    done: dict[int, Any] = {}
    idle, wanted = list(workers), 0
    while wanted < len(tasks):
        for worker, (number, task) in zip(idle, waiting, strict=False):
            _give(worker, task)
            busy[worker] = number
        idle = [one for one in wait(list(busy)) if isinstance(one, Connection)]
        for worker in idle:
            done[busy.pop(worker)] = _answer(worker)
        while wanted in done:
            yield done.pop(wanted)
            wanted += 1


def _give(worker: Connection, task: Task) -> None:
    try:
        worker.send(task)
    except ConnectionError:  # it was killed between two tasks
        raise _lost() from None


def _lost() -> ProcessLost:
    return ProcessLost("a process of the verification was killed", hint=MORE_MEMORY)


def _answer(worker: Connection) -> Any:
    try:
        answer, error = worker.recv()
    except (EOFError, ConnectionError):
        raise _lost() from None
    if error is not None:
        raise error
    return answer
