"""The environment of a state: copies of it beside the process that changes it."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from scm.state import state_environment
from scm.state.state_environment import StateEnvironment, snapshot_of
from suture.errors import Code, UnavailableError
from tests.support.control.scm_world import MAP_BYTES

ROWS = 500
CHANGES = 30
READER = """
import sys
from pathlib import Path
from scm.state.state_environment import snapshot_of

with snapshot_of(Path(sys.argv[1])) as (environment, transaction):
    table = environment.open_db(b"t", txn=transaction, create=False)
    print("open", flush=True)
    for line in sys.stdin:
        if line.strip():
            environment.copy(line.strip(), compact=True, txn=transaction)
        rows = [bytes(value) for _key, value in transaction.cursor(db=table)]
        print(len(rows), *{row.decode()[:6] for row in rows}, flush=True)
"""


class Reader:
    """Another process with a snapshot of the state; LMDB opens a file once in each process."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert "open\n" == self._line()

    def rows(self, copy_to: Path | str = "") -> str:
        """Return the number of rows in the snapshot, and their different values; copy it first."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{copy_to}\n")
        self.process.stdin.flush()
        return self._line().strip()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> str:
        """End the snapshot; return the error, or "" for none."""
        _, error = self.process.communicate(timeout=30)
        assert bool(error) == bool(self.process.returncode)
        return error

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=30)


@pytest.fixture
def readers(path: Path) -> Iterator[Callable[..., Reader]]:
    """Return a function that starts a reader; all are killed at the end."""
    started = []

    def start(where: Path = path) -> Reader:
        started.append(Reader(where))
        return started[-1]

    yield start
    for reader in started:
        reader.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of the files."""
    return tmp_path / "state"


@pytest.fixture
def state(path: Path) -> Iterator[StateEnvironment]:
    """An open environment with some dozens of pages in table t."""
    made = StateEnvironment(path, MAP_BYTES)
    made.open_databases(["t"])
    overwrite(made, 0)
    try:
        yield made
    finally:
        made.close()


def overwrite(state: StateEnvironment, number: int) -> None:
    """Replace all rows in one transaction."""
    with state.write() as transaction:
        for row in range(ROWS):
            transaction.put(b"%06d" % row, b"%06d" % number * 50, db=state.databases["t"])


def test_a_snapshot_outlives_the_changes_made_beside_it(
    state: StateEnvironment, readers: Callable[..., Reader], tmp_path: Path
) -> None:
    """
    Each snapshot keeps its pages, also while an earlier one is being copied, and so does its copy.
    """
    overwrite(state, 1)
    first = readers()
    for number in range(2, CHANGES):
        overwrite(state, number)
    second = readers()
    for number in range(CHANGES, 2 * CHANGES):
        overwrite(state, number)

    assert f"{ROWS} {CHANGES - 1:06}" == second.rows()
    second.kill()
    for number in range(2 * CHANGES, 3 * CHANGES):
        overwrite(state, number)
    (tmp_path / "copy").mkdir()
    assert f"{ROWS} {1:06}" == first.rows(tmp_path / "copy")
    assert f"{ROWS} {1:06}" == readers(tmp_path / "copy").rows()


def test_pages_are_reused_once_a_reader_was_killed(
    state: StateEnvironment, readers: Callable[..., Reader], path: Path
) -> None:
    """The file grows while the reading process is alive, and no longer."""
    reader = readers()
    sizes = [(path / "data.mdb").stat().st_size]
    for _ in range(2):
        for number in range(CHANGES):
            overwrite(state, number)
        sizes.append((path / "data.mdb").stat().st_size)
        reader.kill()

    assert sizes[0] < sizes[1] == sizes[2]


def test_a_snapshot_waits_for_the_end_of_a_change(
    state: StateEnvironment,
    path: Path,
    readers: Callable[..., Reader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page with the roots of all tables is never read while it is written."""
    monkeypatch.setattr(state_environment, "LOCK_WAIT_S", 0.05)

    with state.write(), pytest.raises(UnavailableError, match="locked") as caught:
        snapshot_of(path).__enter__()

    assert Code.BUSY is caught.value.code
    assert f"{ROWS} {0:06}" == readers().rows()


def test_a_change_is_refused_while_a_process_hangs_in_taking_its_snapshot(
    state: StateEnvironment, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control plane answers its calls, instead of hanging with that process."""
    monkeypatch.setattr(state_environment, "LOCK_WAIT_S", 0.05)
    directory = os.open(path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX)

    with pytest.raises(UnavailableError, match="locked") as caught:
        overwrite(state, 1)

    assert Code.BUSY is caught.value.code
    os.close(directory)
    overwrite(state, 1)


def test_a_copy_that_a_start_made_invalid_is_discarded(
    state: StateEnvironment, path: Path, readers: Callable[..., Reader]
) -> None:
    """The new control plane cannot know which pages an earlier snapshot needs."""
    undisturbed = readers()
    assert "" == undisturbed.end()
    disturbed, never_opened = readers(), path.parent / "restored"
    never_opened.mkdir()
    assert f"{ROWS} {0:06}" == disturbed.rows(never_opened)
    also_disturbed = readers(never_opened)
    state.close()

    state.__init__(path, MAP_BYTES)  # type: ignore[misc]
    StateEnvironment(never_opened, MAP_BYTES).close()

    for reader in (disturbed, also_disturbed):
        assert "another control plane was started" in reader.end()
    assert "" == readers().end()


def test_an_environment_that_lmdb_gave_up_is_opened_again(
    state: StateEnvironment, readers: Callable[..., Reader]
) -> None:
    """
    As after a failed write of the roots. Reads fail until the next change, and copies are invalid.
    """
    reader = readers()
    state._environment.close()

    with pytest.raises(UnavailableError, match="cannot be read") as caught, state.read():
        pass
    assert Code.UNAVAILABLE is caught.value.code
    overwrite(state, 1)
    with state.read() as transaction:
        assert ROWS == transaction.stat(state.databases["t"])["entries"]
    assert "another control plane was started" in reader.end()
    assert f"{ROWS} {1:06}" == readers().rows()


def test_a_state_that_is_not_as_in_memory_is_not_opened_again(state: StateEnvironment) -> None:
    """A change that was reported as failed would be there beside later ones."""
    state._environment.close()
    state.number -= 1

    for _ in range(2):
        with pytest.raises(lmdb.Error, match="restart suture-scm"):
            overwrite(state, 1)


def test_no_lock_file_of_lmdb_is_left_on_the_disk(path: Path) -> None:
    """One that a process left is removed: the table of readers is in memory."""
    for leave in (path / "lock.mdb").touch, lambda: (path / "lock.mdb").symlink_to("/nowhere"):
        path.mkdir(exist_ok=True)
        leave()
        state = StateEnvironment(path, MAP_BYTES)
        assert {"data.mdb", "copy.lock"} == {one.name for one in path.iterdir()}
        state.close()
        assert {"data.mdb", "copy.lock"} == {one.name for one in path.iterdir()}
