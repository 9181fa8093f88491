"""Checks in a child process that LMDB can read all pages of a state.

LMDB trusts its file. A page of zeros, or a sector that cannot be read, ends the reading process by
an assertion or a signal before it can report an error. Therefore a child process first reads all
pages in use, with LMDB's own copy function, and discards the copy. The check takes as long as one
read of the pages, from memory or from the disk. A start would read the pages anyway.
"""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import lmdb

from scm.state.state_environment import DATA, snapshot_of
from suture.errors import Code, RefusedError

HINT: Final = "check the disk and the kernel's log, keep what is there, then: suture scm restore"
_IS_DAMAGED: Final = 3  # exit code of a child that got an error from LMDB
_DEADLY: Final = frozenset({signal.SIGABRT, signal.SIGBUS, signal.SIGSEGV})


def check_pages(source: Path) -> None:
    """Raise RefusedError(INCONSISTENT_VOLUME) if a reader of the state below `source` would crash.
    Other errors appear when the state is opened."""
    if not (source / DATA).is_file():
        return
    child = subprocess.run(  # noqa: S603 - this file, by our own interpreter
        [sys.executable, "-P", __file__, str(source)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    died_of = -child.returncode
    if died_of in _DEADLY:
        why = f"reading it ends in {signal.Signals(died_of).name}"
    elif child.returncode == _IS_DAMAGED:
        why = child.stderr.strip()
    else:
        return
    raise RefusedError(
        Code.INCONSISTENT_VOLUME, f"the state in {source} has a damaged page: {why}", hint=HINT
    )


def _go_through(source: str) -> None:
    """Make LMDB read all pages in use, and end this child process with the result as its exit
    code."""
    try:
        with (
            snapshot_of(Path(source)) as (environment, transaction),
            Path("/dev/null").open("wb") as nowhere,
        ):
            environment.copyfd(nowhere.fileno(), compact=True, txn=transaction)
    except (lmdb.CorruptedError, lmdb.PageNotFoundError) as error:
        sys.stderr.write(str(error))
        sys.exit(_IS_DAMAGED)


if __name__ == "__main__":
    _go_through(sys.argv[1])
