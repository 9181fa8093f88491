"""A directory whose state is lost is no place for a new cluster, unless an operator says so."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from scm.state.database import StateDatabase
from scm.state.state_directory import GROWING
from suture.errors import Code, RefusedError
from tests.support.control.fake_datanode import FakeDatanode
from tests.support.control.scm_process import ScmProcess, spawn
from tests.support.control.scm_world import MAP_BYTES


def lose_data(data: Path) -> None:
    """Remove the file with all rows."""
    (data / "state" / "data.mdb").unlink()


def empty_data(data: Path) -> None:
    """Leave no byte of the file with all rows."""
    (data / "state" / "data.mdb").write_bytes(b"")


def lose_state(data: Path) -> None:
    """Remove the state; the lock file and the snapshots stay."""
    shutil.rmtree(data / "state")


def lose_all_but_snapshots(data: Path) -> None:
    """Remove the state and the lock file."""
    shutil.rmtree(data / "state")
    (data / "LOCK").unlink()
    (data / "snapshots").mkdir(exist_ok=True)


def lose_all_but_an_empty_file(data: Path) -> None:
    """Leave only an empty file of rows."""
    empty_data(data)
    for path in data.iterdir():
        if path.name != "state":
            path.unlink()


def lose_the_cluster(data: Path) -> None:
    """Leave a file of LMDB in which nothing was ever written."""
    shutil.rmtree(data / "state")
    (data / "state").mkdir()
    lmdb.open(str(data / "state"), max_dbs=32).close()


LOSSES = [
    lose_data,
    empty_data,
    lose_state,
    lose_all_but_snapshots,
    lose_all_but_an_empty_file,
    lose_the_cluster,
]


def files(directory: Path) -> dict[str, bytes]:
    """Return the files of a state."""
    found = (path for path in directory.rglob("*") if path.is_file() and path.name != "LOCK")
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


@pytest.mark.parametrize("lose", LOSSES)
def test_lost_state_is_refused_at_start(lose: Callable[[Path], None], tmp_path: Path) -> None:
    """Each start refuses, names the way back, and leaves the state as it is."""
    StateDatabase.open(tmp_path, map_bytes=MAP_BYTES).close()
    lose(tmp_path)
    before = files(tmp_path) if lose is not lose_the_cluster else None

    for _start in range(2):
        with pytest.raises(RefusedError, match=str(tmp_path)) as refused:
            StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)

        assert Code.INCONSISTENT_VOLUME is refused.value.code
        assert "suture scm restore" in refused.value.hint
        assert before in (None, files(tmp_path))


@pytest.mark.parametrize("lose", [lose_data, empty_data, lose_state])
def test_new_cluster_begins_where_the_operator_says_so(
    lose: Callable[[Path], None], tmp_path: Path
) -> None:
    """The remains of the lost state are set aside, and the option is refused from then on."""
    state = StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)
    state.close()
    lose(tmp_path)
    left = [files(path) for path in tmp_path.glob("state")]

    begun = StateDatabase.open(tmp_path, map_bytes=MAP_BYTES, is_new=True)
    begun.close()

    assert state.cluster_id != begun.cluster_id
    aside = [path for path in tmp_path.iterdir() if path.name.startswith("state.lost")]
    assert left == [files(path) for path in aside]
    with pytest.raises(RefusedError, match=begun.cluster_id):
        StateDatabase.open(tmp_path, map_bytes=MAP_BYTES, is_new=True)
    again = StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)
    again.close()
    assert (begun.cluster_id, 2) == (again.cluster_id, again.term)


def test_first_start_that_was_killed_begins_again(tmp_path: Path) -> None:
    """No cluster was there yet: nothing is lost, whatever the first start had made."""

    def die(_path: Path) -> None:
        raise RefusedError(Code.CANCELLED, "killed")

    for _start in range(2):
        with pytest.raises(RefusedError, match="killed"):
            StateDatabase.open(tmp_path, map_bytes=MAP_BYTES, check=die)
    (tmp_path / "state").mkdir()
    lmdb.open(str(tmp_path / "state"), max_dbs=32).close()

    state = StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)
    state.close()
    assert 1 == state.term


def test_first_start_that_was_refused_begins_once_it_may(tmp_path: Path) -> None:
    """The lock file of a start that made nothing else is no sign of a lost state."""
    (tmp_path / GROWING).mkdir()
    with pytest.raises(RefusedError, match="was interrupted"):
        StateDatabase.open(tmp_path, map_bytes=MAP_BYTES)
    (tmp_path / GROWING).rmdir()

    StateDatabase.open(tmp_path, map_bytes=MAP_BYTES).close()


def test_suture_scm_ends_where_its_state_is_empty(tmp_path: Path) -> None:
    """The process exits with 1 and says what to do. `--new-cluster` starts it."""
    scm = ScmProcess.start(tmp_path)
    scm.kill()
    empty_data(tmp_path)

    refused = spawn(tmp_path)
    _out, said = refused.communicate(30)
    begun = ScmProcess.start(tmp_path, arguments=["--new-cluster"])
    try:
        node = FakeDatanode.dial(begun.address, "dn1")
        node.register()
    finally:
        begun.kill()

    assert 1 == refused.returncode
    assert "suture scm restore" in said
    assert "--new-cluster" in said
    assert scm.listening["cluster_id"] != begun.listening["cluster_id"]


def test_first_start_of_suture_scm_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    """The next start begins the cluster or continues with it."""
    for _kill in range(3):
        process = spawn(tmp_path / "data")
        while not (tmp_path / "data" / "LOCK").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate(30)

    scm = ScmProcess.start(tmp_path / "data")
    scm.kill()
