"""What was being built on a volume, and could not be removed when that was given up."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.host.housekeeper import Housekeeper
from agent.store.operations import closing, replica_import
from agent.store.operations.replica_import import ImportSpec
from agent.store.replica_store import ReplicaStore
from merkle.replica import Bcsid, BlockData, BlockId, ContainerId, ReplicaState
from tests.support.clock import FakeClock
from tests.support.storage.stored_replica import StoredReplica
from tests.support.storage.stores import chunk_of

TWO = ContainerId(2)
ANNOUNCED = ImportSpec(
    container_id=TWO,
    state=ReplicaState.CLOSED,
    former_state=None,
    replica_index=0,
    bcsid=Bcsid(1),
    origin_datanode_id="dn-x",
    created_at_ms=0,
    data_bytes=1_000,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    """Return a store with room."""
    made = StoredReplica(tmp_path)
    yield made.store
    made.close()


def failing(*_: Any, **__: Any) -> None:
    """Fail as a disk does that has an error for a moment."""
    raise OSError(errno.EIO, "Input/output error")


def give_up_arrival(store: ReplicaStore) -> None:
    """Receive a part of a replica; its sender goes away."""
    begun = store.begin_arrival(ANNOUNCED)
    begun.keep_rows([BlockId(1)], [b"row"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rmdir", failing)
        patch.setattr(os, "unlink", failing)
        begun.discard()


def fail_to_begin_arrival(store: ReplicaStore) -> None:
    """Make its directory, and not the file for its rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_import, "open_new", failing)
        with pytest.raises(Exception, match="EIO"):
            store.begin_arrival(ANNOUNCED)


def fail_to_create(store: ReplicaStore) -> None:
    """Make the directories of a new replica, and not its descriptor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closing, "write_descriptor", failing)
        patch.setattr(os, "rmdir", failing)
        with pytest.raises(Exception, match="EIO"):
            store.create_container(TWO)


def give_up_block(store: ReplicaStore) -> None:
    """Receive a part of a large block, and its writer goes away."""
    store.create_container(TWO)
    data = bytes(100_000)
    piece = BlockData(BlockId(1), Bcsid(0), (chunk_of(data),))
    begun = store.begin_blocks(TWO)
    begun.add_chunks(piece, memoryview(data), is_whole=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", failing)
        begun.discard()


def left(store: ReplicaStore) -> list[Path]:
    """Return what is there and belongs to nobody."""
    [volume] = store.volume_set.working
    return [*volume.layout.importing.iterdir(), *volume.layout.deleting.iterdir()]


@pytest.mark.parametrize(
    "give_up", [give_up_arrival, fail_to_begin_arrival, fail_to_create, give_up_block]
)
def test_abandoned_arrival_is_removed_without_a_restart(
    store: ReplicaStore, give_up: Callable[[ReplicaStore], None]
) -> None:
    """Otherwise gigabytes would stay until the next start, which may be months away."""
    give_up(store)
    keeper = Housekeeper(store, 1.0, clock=FakeClock())

    keeper.step()
    keeper.step()

    assert [] == left(store)


def test_housekeeper_leaves_an_arrival_in_progress_alone(store: ReplicaStore) -> None:
    """Repeated runs do not touch it, and leftovers of an earlier attempt are not mixed into it."""
    give_up_arrival(store)
    keeper = Housekeeper(store, 1.0, clock=FakeClock())
    keeper.step()
    begun = store.begin_arrival(ANNOUNCED)
    begun.keep_rows([BlockId(1)], [b"row"])

    keeper.step()
    keeper.step()

    assert [(1, b"row")] == list(begun.rows())
    assert {"2", "2.rows"} == {path.name for path in left(store)}
    begun.discard()
    assert [] == left(store)
