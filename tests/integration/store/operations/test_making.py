"""A replica whose making or removal fails at its last step: what is told is true, and the next try
works without a restart."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.store.failure_reports import StoreFailure
from agent.store.index.environment import Index
from agent.store.operations import deleting
from agent.store.recovery.fsck import fsck
from agent.store.replica import path_conflicts
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId, ReplicaState
from suture.errors import Code, SutureError, VolumeFailed
from suture.runtime import durable
from tests.support.storage.datanodes import Datanode
from tests.support.storage.pushed import Pair, serving_pair
from tests.support.storage.stored_replica import CONTAINER
from tests.support.storage.stores import (
    check_clean,
    closed_replica,
    open_store,
    options_of_test,
    reopened,
    write_block,
)

ONE = ContainerId(1)
EIO = OSError(errno.EIO, "Input/output error")


class Failing:
    """Has the names in a directory not become durable, or commits of an index fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.failures = 0

    def sync_of(self, directory: Path) -> None:
        """Fail once the new name is there, and nowhere else."""
        sync = durable.sync_directory

        def fail(path: Path) -> None:
            if path == directory:
                self.failures += 1
                raise EIO
            sync(path)

        self._patch.setattr(durable, "sync_directory", fail)

    def commit(self, number: int) -> None:
        """Fail the commit of that number from now on, and those that follow."""
        write, seen = Index.write, []

        def fail(index: Index, change: object) -> object:
            seen.append(change)
            if len(seen) < number:
                return write(index, change)  # type: ignore[arg-type]
            self.failures += 1
            raise VolumeFailed(Code.IO_EXCEPTION, "the index cannot be written")

        self._patch.setattr(Index, "write", fail)

    def removal(self, module: object, *, always: bool = False) -> None:
        """Fail to remove a directory with what is in it, or to look whether there is one."""

        def fail(path: Path) -> None:
            if always or path.exists():
                self.failures += 1
                raise EIO

        self._patch.setattr(module, "remove_tree", fail)


def group_of(store: ReplicaStore) -> Path:
    """Return the directory that has the replica's."""
    return store.volume_set.working[0].paths(ONE).root.parent


def test_a_creation_whose_name_was_not_made_durable_is_tried_again(
    store: ReplicaStore, tmp_path: Path
) -> None:
    """
    The directory had its name when it failed: nothing is there afterwards, nor in the way.
    """
    with pytest.MonkeyPatch.context() as patch:
        failing = Failing(patch)
        failing.sync_of(group_of(store))
        with pytest.raises(SutureError, match="Input/output error"):
            store.create_container(ONE)
    assert failing.failures
    assert not list(group_of(store).iterdir())

    store.create_container(ONE)

    write_block(store, 1, 1)
    check_clean(store, tmp_path)


def test_a_creation_that_was_not_recorded_leaves_nothing(store: ReplicaStore) -> None:
    """Otherwise a start would load a replica that was never acknowledged."""
    with pytest.MonkeyPatch.context() as patch:
        failing = Failing(patch)
        failing.commit(1)
        with pytest.raises(SutureError, match="cannot be written"):
            store.create_container(ONE)

    assert failing.failures
    assert not list(group_of(store).iterdir())


@pytest.mark.parametrize("is_ours", [True, False])
def test_obstacle_in_the_place_of_a_new_replica_goes_to_quarantine(
    store: ReplicaStore, tmp_path: Path, *, is_ours: bool
) -> None:
    """The obstacle is the remains of a failed creation, or a foreign directory, and is whole in
    quarantine afterwards.
    """
    volume = store.volume_set.working[0]
    root = volume.paths(ONE).root
    if is_ours:
        with pytest.MonkeyPatch.context() as patch:
            failing = Failing(patch)
            failing.sync_of(group_of(store))
            failing.removal(path_conflicts, always=True)
            with pytest.raises(SutureError):
                store.create_container(ONE)
        assert failing.failures
    else:
        (root / "chunks").mkdir(parents=True)
    assert root.is_dir()

    store.create_container(ONE)

    [aside] = volume.layout.quarantine.glob("1-*.aside")
    assert (aside / "chunks").is_dir()
    write_block(store, 1, 1)
    check_clean(store, tmp_path)


def test_a_deleted_replica_is_gone_though_its_files_are_not(tmp_path: Path) -> None:
    """
    No row names them: the id is free at once, the disk is looked at, a start removes them.
    """
    troubles: list[StoreFailure] = []
    store = open_store(tmp_path, options=options_of_test(on_trouble=troubles.append))
    closed_replica(store)
    with pytest.MonkeyPatch.context() as patch:
        failing = Failing(patch)
        failing.removal(deleting)
        store.delete_container(ONE, force=True)
    assert failing.failures

    assert [] == store.replica_ids()
    assert [(ONE, True)] == [(one.container_id, one.is_disk) for one in troubles]
    assert "cannot be removed: Input/output error" in troubles[0].reason
    store.create_container(ONE)
    write_block(store, 1, 1)

    store = reopened(store, tmp_path)

    assert ReplicaState.OPEN is store.replica(ONE).state
    check_clean(store, tmp_path)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two datanodes that serve, of which one has the replica."""
    with serving_pair(tmp_path) as made:
        made.source.replica.create(blocks=3)
        yield made


@pytest.mark.parametrize("step", ["name", "end"])
def test_an_arrival_that_fails_at_its_end_arrives_the_next_time(pair: Pair, step: str) -> None:
    """The failed arrival leaves no files and no rows on the target, which continues without a
    restart.
    """
    target: Datanode = pair.target
    volume = target.replica.store.volume_set.working[0]
    with pytest.MonkeyPatch.context() as patch:
        failing = Failing(patch)
        if step == "name":
            failing.sync_of(volume.paths(CONTAINER).root.parent)
        else:
            failing.commit(2)
        with pytest.raises(SutureError):
            pair.source.replicate(target)
    assert failing.failures
    assert not volume.paths(CONTAINER).root.exists()
    with volume.index.read() as rows:
        left = list(rows.journal(CONTAINER))
    assert (step == "end") == bool(left), "an index that fails has the rows until the next start"

    pair.source.replicate(target)

    assert ReplicaState.CLOSED is target.replica.store.replica(CONTAINER).state
    assert pair.source.files() == target.files()
    target.replica.close()
    assert () == fsck(pair.path / "b", read_data=True).problems
    target.replica.reopen()


def broken_arrival(pair: Pair) -> None:
    """Fail an arrival once its directory has its name, and the removal of that as well."""
    volume = pair.target.replica.store.volume_set.working[0]
    with pytest.MonkeyPatch.context() as patch:
        failing = Failing(patch)
        failing.sync_of(volume.paths(CONTAINER).root.parent)
        failing.removal(path_conflicts, always=True)
        with pytest.raises(SutureError):
            pair.source.replicate(pair.target)
    assert 2 == failing.failures
    assert volume.paths(CONTAINER).root.is_dir()
    assert [] == pair.target.replica.store.replica_ids()


def test_an_arrival_that_could_not_be_taken_away_is_served_by_the_next_start(pair: Pair) -> None:
    """The arrival is whole: its rows stay with its files."""
    broken_arrival(pair)

    pair.target.replica.close()
    pair.target.replica.reopen()

    assert ReplicaState.CLOSED is pair.target.replica.store.replica(CONTAINER).state
    assert pair.source.files() == pair.target.files()


def test_an_arrival_that_could_not_be_taken_away_gives_way_to_the_next(pair: Pair) -> None:
    """The old one goes to quarantine."""
    broken_arrival(pair)

    pair.source.replicate(pair.target)

    assert pair.source.files() == pair.target.files()


def test_an_arrival_that_could_not_be_taken_away_leaves_no_rows_to_a_new_replica(
    pair: Pair,
) -> None:
    """
    A block that was never written to it would be called lost.
    """
    broken_arrival(pair)
    store = pair.target.replica.store

    store.create_container(CONTAINER)

    assert [] == store.view(CONTAINER).blocks()
    with store.volume_set.working[0].index.read() as rows:
        assert [] == list(rows.journal(CONTAINER))
