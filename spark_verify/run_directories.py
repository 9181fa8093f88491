"""The hidden directories in which runs grow on a local disk: one process has each, by a lock that
ends with it.

Who makes or removes such a directory, or a run beside it, has the directory of results locked
meanwhile.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from spark_verify.errors import RunConflict
from spark_verify.file_systems import Place

RUN: Final = "run_id="
"""How the name of a run's directory begins."""

ALONE_S_MAX: Final = 60.0  # how long it waits for others: to remove a large run takes some seconds
POLL_S: Final = 0.1


def partial_of(out: Place, name: str) -> Place:
    """Return the hidden directory beside runs in which one grows."""
    return out / f".{name}.partial"


def remove_unlocked(path: Path) -> None:
    """Remove such a directory, unless its run grows."""
    with suppress(FileNotFoundError):
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _try_lock(handle):  # else it grows
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(handle)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Let no other process on this machine begin a run in `out` or remove anything there meanwhile:
    between a look at what is left and its removal it may have become part of a run that lives.

    Raises RunConflict when another one does so for too long.
    """
    handle = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
    end_s = time.monotonic() + ALONE_S_MAX
    try:
        while not _try_lock(handle):
            if time.monotonic() > end_s:
                raise RunConflict(
                    f"another process has been removing runs in {out} for {ALONE_S_MAX:.0f} s",
                    hint="wait for it, or look what it waits for",
                )
            time.sleep(POLL_S)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    """Lock a directory; return whether that was done, which it is not where another has it."""
    with suppress(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@contextmanager
def work_directory(out: Path, run_id: str) -> Iterator[Path]:
    """Give this process alone the empty directory in which a run grows; hidden, so that nobody
    reads half a run. What is still there at the end is removed.

    Raises RunConflict when another process writes a run of this id.
    """
    path = Path(partial_of(Place.of(out), f"{RUN}{run_id}").path)
    out.mkdir(parents=True, exist_ok=True)
    with alone(out):
        path.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        is_own = _try_lock(handle) and _is_at(handle, path)  # else its owner has just finished
    try:
        if not is_own:
            raise busy(run_id)
        try:
            for left in path.iterdir():  # by a run that was killed
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()
            yield path
        finally:
            if _is_at(handle, path):
                shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)


def busy(run_id: str) -> RunConflict:
    """Return the error about a run that another process writes."""
    return RunConflict(
        f"another process writes run {run_id} at this moment",
        hint="wait for it, or choose another --run-id",
    )


def _is_at(handle: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False
