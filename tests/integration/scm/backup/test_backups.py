"""Backups of the control plane's state: whole or not there, and restored nowhere by mistake."""

import os
import shutil
from pathlib import Path
from typing import Any

import lmdb
import pytest

from agent.cli.main import run
from merkle.replica import ReplicaState
from scm.backup.backup_writer import list_backups, take_backup
from scm.backup.manifest import BackupManifest
from scm.backup.restore import restore_backup
from scm.state.database import StateDatabase
from scm.state.entities import Allocation, Node, OpState
from scm.state.state_environment import DATA
from scm.state.state_metadata import CONTAINER_GAP, COUNTERS
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from tests.support.control.fake_datanode import FakeDatanode
from tests.support.control.scm_process import ScmProcess
from tests.support.control.scm_world import MAP_BYTES, container, key, replica
from tests.support.printed_json import document_in

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def fill(path: Path) -> str:
    """Make a state with something in most tables; return its cluster's id."""
    state = StateDatabase.open(path, map_bytes=MAP_BYTES)
    with state.change() as change:
        change.put(state.nodes, Node("dn1", "dn1:1", "/r", "0.1", 9, OpState.IN_SERVICE, 0, 1, 2))
        change.put(state.containers, container(container_id=change.next_id("next_container_id")))
        change.put(state.replicas, replica("dn1", ReplicaState.CLOSED))
        change.put(state.allocations, Allocation(1, change.next_id("next_local_id"), 3, 4, "c"))
        change.put(state.keys, key("a name", [], []))
    cluster_id = state.cluster_id
    state.close()
    return cluster_id


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of a control plane that is not running."""
    fill(tmp_path / "data")
    return tmp_path / "data"


def take(data: Path, to: Path, *, hours: int = 0, keep: int = 0) -> Path:
    """Take a backup so many hours after the first."""
    now_ms = NOW_MS + hours * HOUR_MS
    return take_backup(data, to, now_ms=now_ms, version="1", keep_count=keep).path


def contents(path: Path) -> dict[str, bytes]:
    """Return all files below a directory."""
    return {
        str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()
    }


class TestTaking:
    def test_a_working_control_plane_is_backed_up(self, tmp_path: Path) -> None:
        """
        From beside it, with what it has acknowledged; it goes on, and its backup is not disturbed.
        """
        scm = ScmProcess.start(tmp_path / "data")
        try:
            FakeDatanode.dial(scm.address, "dn1").register()
            taken = take_backup(
                tmp_path / "data", tmp_path / "to", now_ms=NOW_MS, version="1.2", keep_count=0
            )
            FakeDatanode.dial(scm.address, "dn2").register()
        finally:
            scm.kill()

        manifest = taken.manifest
        assert (1, scm.listening["cluster_id"]) == (manifest.counts["nodes"], manifest.cluster_id)
        assert ("1.2", NOW_MS) == (manifest.suture_version, manifest.taken_at_ms)
        assert [(taken.path, manifest)] == list_backups(tmp_path / "to")
        restore_backup(taken.path, tmp_path / "new", now_ms=NOW_MS + 1)

    def test_every_table_is_looked_at(self, data: Path, tmp_path: Path) -> None:
        """The check of a backup covers every table of a state."""
        state = str(data / "state")
        with lmdb.open(state, readonly=True, lock=False) as stored, stored.begin() as transaction:
            names = {name.decode() for name in transaction.cursor().iternext(values=False)}

        taken = take_backup(data, tmp_path / "to", now_ms=NOW_MS, version="1", keep_count=0)

        assert names - {"meta"} == taken.manifest.counts.keys()

    def test_interrupted_backup_is_not_listed(self, data: Path, tmp_path: Path) -> None:
        """Nothing that could be taken for a backup is left, and the next backup removes the
        remains.
        """

        def die(_count: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            take_backup(data, tmp_path / "to", now_ms=NOW_MS, version="1", looked_at=die)

        assert [] == list_backups(tmp_path / "to")
        assert any(one.name.endswith(".building") for one in (tmp_path / "to").iterdir())
        path = take(data, tmp_path / "to", hours=1)
        assert [".lock", path.name] == sorted(p.name for p in (tmp_path / "to").iterdir())

    def test_a_state_with_a_damaged_row_is_not_backed_up(self, data: Path, tmp_path: Path) -> None:
        """A copy that cannot be opened is no backup, and the older ones stay."""
        older = take(data, tmp_path / "to")
        environment = lmdb.open(str(data / "state"), max_dbs=16)
        with environment.begin(write=True) as transaction:
            keys = environment.open_db(b"keys", txn=transaction)
            transaction.put(b"\x00" * 32, b"no row", db=keys)
        environment.close()

        with pytest.raises(RefusedError, match="table keys, key 0000") as caught:
            take(data, tmp_path / "to", hours=1, keep=1)

        assert Code.INCONSISTENT_VOLUME == caught.value.code
        assert [older] == [path for path, _ in list_backups(tmp_path / "to")]

    def test_backup_is_never_overwritten(self, data: Path, tmp_path: Path) -> None:
        """Two backups are of the same moment. The second is refused, and the first stays as it
        is.
        """
        before = contents(take(data, tmp_path / "to"))

        with pytest.raises(RefusedError, match="it exists"):
            take(data, tmp_path / "to")

        assert before == contents(list_backups(tmp_path / "to")[0][0])

    def test_old_ones_go_when_the_new_one_is_whole(self, data: Path, tmp_path: Path) -> None:
        """The configured number of backups of this cluster is kept. Damaged ones and those of
        other clusters are left alone.
        """
        fill(tmp_path / "other")
        foreign = take(tmp_path / "other", tmp_path / "to", hours=0)
        damaged = take(data, tmp_path / "to", hours=1)
        (damaged / "manifest.json").write_text("{}")
        made = [take(data, tmp_path / "to", hours=hours, keep=2) for hours in range(2, 6)]

        assert [foreign, damaged, *made[-2:]] == [path for path, _ in list_backups(tmp_path / "to")]

    def test_backups_are_removed_only_beyond_the_keep_count(
        self, data: Path, tmp_path: Path
    ) -> None:
        """The configured history is there as soon as possible, and a longer one begins with the
        backups of the shorter one.
        """
        made = [take(data, tmp_path / "to", hours=hours, keep=5) for hours in range(5)]
        assert made == [path for path, _ in list_backups(tmp_path / "to")]

        made += [take(data, tmp_path / "to", hours=hours, keep=5) for hours in range(5, 9)]
        assert made[-5:] == [path for path, _ in list_backups(tmp_path / "to")]

        longer = take(data, tmp_path / "to", hours=9, keep=10)
        assert [*made[-5:], longer] == [path for path, _ in list_backups(tmp_path / "to")]

    def test_a_new_one_stays_although_the_clock_went_back(self, data: Path, tmp_path: Path) -> None:
        """The new backup is the newest one, whatever its name."""
        take(data, tmp_path / "to", hours=5)
        late = take(data, tmp_path / "to", hours=6)
        new = take(data, tmp_path / "to", hours=1, keep=2)

        assert [new, late] == [path for path, _ in list_backups(tmp_path / "to")]

    def test_no_state_is_named(self, tmp_path: Path) -> None:
        """
        A directory without a state is refused by name.
        """
        with pytest.raises(RefusedError, match="it has no state of an SCM"):
            take(tmp_path, tmp_path / "to")

    def test_second_concurrent_backup_is_refused(self, data: Path, tmp_path: Path) -> None:
        """A second backup into the same directory is refused as unavailable."""

        def second(_count: int) -> None:
            take(data, tmp_path / "to", hours=2)

        with pytest.raises(UnavailableError, match="another backup"):
            take_backup(data, tmp_path / "to", now_ms=NOW_MS, version="1", looked_at=second)


def flip(path: Path, at: int) -> None:
    """Flip one bit of a file."""
    octets = bytearray(path.read_bytes())
    octets[at] ^= 1
    path.write_bytes(octets)


class TestRestoring:
    def test_restored_state_has_all_rows_and_skips_ids(self, data: Path, tmp_path: Path) -> None:
        """The ids continue where none was allocated since, not even by an earlier restore."""
        path = take(data, tmp_path / "to")
        first = restore_backup(path, tmp_path / "new", now_ms=NOW_MS + 1_000)
        restore_backup(path, tmp_path / "again", now_ms=NOW_MS + 2_000)

        state = StateDatabase.open(tmp_path / "new", map_bytes=MAP_BYTES)
        counters, restored = dict(state.counters), state.restored
        assert "a name" in {one.name for one in state.keys.values()}
        assert 1 == len(state.containers)
        assert state.is_cold
        assert 0 == len(state.replicas)  # they are reported again
        state.close()
        again = StateDatabase.open(tmp_path / "again", map_bytes=MAP_BYTES)
        assert all(counters[name] < again.counters[name] for name in COUNTERS if name in CLOCKED)
        again.close()
        assert first.restored == restored
        before = first.manifest.counters
        assert all(before[name] < counters[name] for name in COUNTERS)
        assert before["next_container_id"] + CONTAINER_GAP == counters["next_container_id"]

    def test_a_backup_of_what_is_not_recovered_is_not_either(
        self, data: Path, tmp_path: Path
    ) -> None:
        """Containers that the first restore has not recovered are open in the second one, too."""
        restore_backup(take(data, tmp_path / "to"), tmp_path / "new", now_ms=NOW_MS + 1_000)
        state = StateDatabase.open(tmp_path / "new", map_bytes=MAP_BYTES)
        with state.change() as change:
            closed = container(container_id=change.next_id("next_container_id"))
            change.put(state.containers, closed)
        first = state.restored
        state.close()
        assert first is not None

        second = take(tmp_path / "new", tmp_path / "to", hours=1)
        done = restore_backup(second, tmp_path / "again", now_ms=NOW_MS + 2 * HOUR_MS)

        assert first.first_new_container_id == done.restored.first_new_container_id
        assert set(first.unfinished) <= set(done.restored.unfinished)

    @pytest.mark.parametrize("where", ["manifest.json", f"state/{DATA}"])
    def test_a_flipped_bit_is_found(self, where: str, data: Path, tmp_path: Path) -> None:
        """A flipped bit is found anywhere in the backup before anything is written."""
        path = take(data, tmp_path / "to")
        size_bytes = (path / where).stat().st_size
        for at in range(0, size_bytes, max(1, size_bytes // 40)):
            flip(path / where, at)

            with pytest.raises(RefusedError, match="damaged") as caught:
                restore_backup(path, tmp_path / "new", now_ms=NOW_MS + 1)

            assert Code.INCONSISTENT_VOLUME == caught.value.code
            assert not (tmp_path / "new").exists()
            flip(path / where, at)
        restore_backup(path, tmp_path / "new", now_ms=NOW_MS + 1)

    @pytest.mark.parametrize(
        ("break_it", "words"),
        [
            (lambda path: (path / "manifest.json").unlink(), "cannot read backup"),
            (lambda path: (path / "state" / DATA).unlink(), "data.mdb is missing"),
            (lambda path: os.truncate(path / "state" / DATA, 4096), "4096 bytes"),
            (lambda path: shutil.rmtree(path), "cannot read backup"),
        ],
    )
    def test_damaged_backup_is_refused_with_the_reason(
        self, break_it: object, words: str, data: Path, tmp_path: Path
    ) -> None:
        """The error names the problem."""
        path = take(data, tmp_path / "to")
        break_it(path)  # type: ignore[operator]

        with pytest.raises(RefusedError, match=words):
            restore_backup(path, tmp_path / "new", now_ms=NOW_MS + 1)

        assert not (tmp_path / "new").exists()

    def test_another_cluster_is_refused(self, data: Path, tmp_path: Path) -> None:
        """The operator gave the expected cluster id."""
        path = take(data, tmp_path / "to")

        with pytest.raises(RefusedError, match="not CID-1") as caught:
            restore_backup(path, tmp_path / "new", now_ms=NOW_MS + 1, cluster_id="CID-1")

        assert Code.WRONG_CLUSTER == caught.value.code

    def test_a_clock_that_goes_back_is_refused(self, data: Path, tmp_path: Path) -> None:
        """
        Ids are taken from it: they might be given out twice.
        """
        path = take(data, tmp_path / "to")

        with pytest.raises(RefusedError, match="taken 60 s in the future"):
            restore_backup(path, tmp_path / "new", now_ms=NOW_MS - 60_000)

    @pytest.mark.parametrize("name", ["state", "notes.txt"])
    def test_a_directory_with_anything_in_it_is_refused(
        self, name: str, data: Path, tmp_path: Path
    ) -> None:
        """A directory that is not empty is refused and stays unchanged."""
        path = take(data, tmp_path / "to")
        (tmp_path / "new" / name).mkdir(parents=True)

        with pytest.raises(RefusedError, match=f"it is not empty: {name}"):
            restore_backup(path, tmp_path / "new", now_ms=NOW_MS + 1)

        assert [name] == [path.name for path in (tmp_path / "new").iterdir()]

    def test_the_state_in_use_is_refused(self, data: Path, tmp_path: Path) -> None:
        """
        A control plane that has just begun in the directory keeps it.
        """
        path = take(data, tmp_path / "to")
        state = StateDatabase.open(tmp_path / "new", map_bytes=MAP_BYTES)
        try:
            with pytest.raises(SutureError, match="is not empty"):
                restore_backup(path, tmp_path / "new", now_ms=NOW_MS + 1)
        finally:
            state.close()


CLOCKED = set(COUNTERS) - {"next_container_id"}


@pytest.fixture
def backups(data: Path, tmp_path: Path) -> Path:
    """A directory with two backups."""
    take(data, tmp_path / "to")
    take(data, tmp_path / "to", hours=1)
    return tmp_path / "to"


def test_the_command_line(
    data: Path, backups: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Takes, lists and restores; one damaged backup makes the list exit with 2.
    """

    def suture(*words: str, code: int = 0) -> dict[str, Any]:
        capsys.readouterr()
        assert code == run([*words, "--json"])
        return document_in(capsys.readouterr().out, " ".join(words[:2]))

    # What is there is newer by its name: the clock of this test stands in the future.
    made = suture("scm", "backup", str(backups), "--data", str(data), "--keep", "2")
    assert 1 == len(made["removed"])
    listed = suture("scm", "backup", str(backups), "--list")
    assert 2 == len(listed["backups"])
    restored = suture("scm", "restore", made["path"], "--to", str(tmp_path / "new"))
    assert made["manifest"] == restored["manifest"]
    flip(backups / Path(made["path"]).name / "manifest.json", 5)
    suture("scm", "backup", str(backups), "--list", code=2)
    suture("scm", "backup", str(tmp_path / "nowhere"), "--list", code=2)
    found = {path.name: one for path, one in list_backups(backups)}
    assert 1 == sum(isinstance(one, BackupManifest) for one in found.values())
