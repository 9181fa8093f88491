"""Checks in a child process whether LMDB can read all pages of a state.

LMDB does not verify its file. If a page has only zeros, or if a sector cannot be read, an assertion
or a signal kills the reading process before it can report an error. Therefore, a child process
first reads all used pages with LMDB's copy function, and discards the copy. The check takes as long
as one read of the pages. The start of the SCM would read the pages anyway.
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
    """Raise RefusedError(INCONSISTENT_VOLUME) if a process that reads the state would crash.

    Other errors are reported when the state is opened.
    """
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
    """Read all used pages with LMDB, then exit.

    The exit code of this child process is the result.
    """
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
