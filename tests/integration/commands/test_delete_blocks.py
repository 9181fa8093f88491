"""Blocks deleted by order of the SCM: transactions, each acknowledged when it is durable."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.commands import block_delete
from agent.commands.block_delete import delete_blocks
from agent.store.failure_reports import StoreFailure
from agent.store.operations import deleting
from merkle.replica import BlockId, ContainerId, ReplicaState
from suture.errors import UnavailableError
from suture.wire.v1 import scm_pb2
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import CHUNK_BYTES, CONTAINER, StoredReplica

OTHER = ContainerId(2)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """A store with two closed containers of six blocks each."""
    stored = StoredReplica(tmp_path)
    stored.create(blocks=6)
    stored.create(OTHER, blocks=6)
    yield stored
    stored.close()


def transaction(
    number: int, *local_ids: int, container_id: int = CONTAINER
) -> scm_pb2.DeleteTransaction:
    """Return an order to delete blocks."""
    return scm_pb2.DeleteTransaction(
        transaction_id=number, container_id=container_id, local_ids=local_ids
    )


def carry_out(
    replica: StoredReplica, *transactions: scm_pb2.DeleteTransaction
) -> list[scm_pb2.DeleteTransactionResult]:
    """Delete, as a command says."""
    return delete_blocks(replica.store, replica.leases, transactions, stop=lambda: False)


def live(replica: StoredReplica, container_id: ContainerId = CONTAINER) -> list[int]:
    """Return the blocks that have a row; their files must be there, and no others."""
    rows = [int(block_id) for block_id, _ in replica.store.view(container_id).block_rows()]
    files = replica.store.paths(container_id).chunks.iterdir()
    assert rows == sorted(int(path.stem) for path in files)
    return rows


def test_every_transaction_is_acknowledged(replica: StoredReplica) -> None:
    """
    Results come in the order of the transactions, with what each of them freed.
    """
    root = replica.store.view(CONTAINER).tree().root

    results = carry_out(
        replica,
        transaction(5, 1, 2),
        transaction(6, 3, container_id=OTHER),
        transaction(7, 4),
    )

    assert [(5, True, 2), (6, True, 1), (7, True, 1)] == [
        (item.transaction_id, item.done, item.block_count) for item in results
    ]
    assert 2 * CHUNK_BYTES + 3 == results[1].bytes_freed
    assert ([3, 5, 6], [1, 2, 4, 5, 6]) == (live(replica), live(replica, OTHER))
    assert root == replica.store.view(CONTAINER).tree().root
    assert {1, 2, 4} == set(replica.store.view(CONTAINER).tombstones())


def test_blocks_without_a_known_commit_go_to_quarantine(replica: StoredReplica) -> None:
    """Their metadata is kept with them. A block that was also deleted by a client is removed."""
    files = {n: replica.store.paths(CONTAINER).block_file(BlockId(n)).read_bytes() for n in (1, 2)}
    told = {n: (("key", f"name {n}"),) for n in (1, 2)}
    unproven, proven = transaction(5, 1, 2, 3), transaction(6, 3)
    unproven.keep = True

    results = carry_out(replica, unproven, proven)

    assert [True, True] == [result.done for result in results]
    assert [4, 5, 6] == live(replica)
    (volume,) = replica.store.volume_set.working
    notes = [
        json.loads(path.read_text())
        for path in volume.layout.quarantine.iterdir()
        if path.suffix == ".json"
    ]
    kept = {
        int(path.stem.split("-")[1]): path.read_bytes()
        for path in volume.layout.quarantine.iterdir()
        if path.suffix == ".bytes"
    }
    assert files == kept
    assert told == {n["block_id"]: tuple(map(tuple, n["metadata"])) for n in notes}


def test_a_repeated_transaction_is_done(replica: StoredReplica) -> None:
    """Blocks that were deleted before, by this transaction or another, are acknowledged and free
    nothing.
    """
    carry_out(replica, transaction(5, 1, 2))

    results = carry_out(replica, transaction(5, 1, 2), transaction(6, 2, 3), transaction(7, 999))

    assert [(True, 0), (True, 1), (True, 0)] == [(item.done, item.block_count) for item in results]
    assert [4, 5, 6] == live(replica)


def test_two_transactions_about_one_block_free_it_once(replica: StoredReplica) -> None:
    """
    The first that names a block has freed it.
    """
    results = carry_out(replica, transaction(5, 1), transaction(6, 1))

    assert [1, 0] == [item.block_count for item in results]


def test_a_transaction_that_cannot_be_done_holds_up_no_other(replica: StoredReplica) -> None:
    """
    Unknown and open containers and senseless ids are answered with their codes.
    """
    replica.store.create_container(ContainerId(3))

    results = carry_out(
        replica,
        transaction(1, 1, container_id=9),
        transaction(2, 1, container_id=3),
        transaction(3, 0),
        transaction(4, 1, container_id=0),
        transaction(5, 1),
    )

    assert [
        "CONTAINER_NOT_FOUND",
        "DELETE_ON_OPEN_CONTAINER",
        "MALFORMED_REQUEST",
        "MALFORMED_REQUEST",
        "",
    ] == [item.code for item in results]
    assert [False, False, False, False, True] == [item.done for item in results]


def test_a_stop_leaves_the_rest_for_another_time(replica: StoredReplica) -> None:
    """When the agent stops, deletes that have not begun are cancelled and answered so."""
    results = delete_blocks(replica.store, replica.leases, [transaction(1, 1)], stop=lambda: True)

    assert [(False, "CANCELLED")] == [(item.done, item.code) for item in results]
    assert [1, 2, 3, 4, 5, 6] == live(replica)


def test_large_orders_go_in_batches(
    replica: StoredReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The lease is given back between batches, and no transaction is cut in two.
    """
    monkeypatch.setattr(block_delete, "BLOCKS_PER_BATCH", 2)
    changed: list[ContainerId] = []
    replica.store.on_change = changed.append

    results = carry_out(
        replica, transaction(1, 1), transaction(2, 2), transaction(3, 3, 4, 5), transaction(4, 6)
    )

    assert all(item.done for item in results)
    assert [] == live(replica)
    assert 3 == len(changed)  # of {1, 2}, {3, 4, 5} and {6}


def test_files_that_could_not_be_removed_are_removed_by_the_next(
    replica: StoredReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A tombstone whose file stayed, because its removal failed, loses it with the next order.
    """

    def failing(path: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as disk:
        disk.setattr(deleting, "remove_file", failing)
        first = carry_out(replica, transaction(1, 1))
    assert replica.file(1).exists()

    again = carry_out(replica, transaction(1, 1))

    assert (False, True) == (first[0].done, again[0].done)
    assert not replica.file(1).exists()
    assert [2, 3, 4, 5, 6] == live(replica)


def test_a_file_that_cannot_be_removed_fails_its_transaction_alone(
    replica: StoredReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The others in the same change are done and say what they freed; that one names its file, is
    not done until it is gone, and its volume is looked at.
    """
    real, bad = deleting.remove_file, replica.file(3)
    changed: list[ContainerId] = []
    troubles: list[StoreFailure] = []

    def failing(path: Path) -> bool:
        if path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path)

    orders = (transaction(1, 1, 2), transaction(2, 3, 4), transaction(3, 5))
    replica.store.on_change, replica.store.on_trouble = changed.append, troubles.append
    with monkeypatch.context() as disk:
        disk.setattr(deleting, "remove_file", failing)
        first = carry_out(replica, *orders)
        second = carry_out(replica, transaction(4, 6), orders[1])

    assert [(True, 2), (False, 0), (True, 1)] == [(one.done, one.block_count) for one in first]
    assert "3.block: EIO" in first[1].message
    assert [(True, 1), (False, 0)] == [(one.done, one.block_count) for one in second]
    assert [CONTAINER] * 2 == changed
    assert {(CONTAINER, True)} == {(one.container_id, one.is_disk) for one in troubles}
    assert [bad] == list(replica.store.paths(CONTAINER).chunks.iterdir())

    [again] = carry_out(replica, orders[1])

    assert (True, []) == (again.done, live(replica))


def test_a_replica_whose_last_damage_was_deleted_is_read_soon(replica: StoredReplica) -> None:
    """Without its damaged blocks it may be whole, which only a scan can show. The scan does not
    wait for its slot. It is not requested if there was no damage, or if some is left.
    """
    asked: list[ContainerId] = []
    for block_id in (1, 3):
        replica.flip(block_id, 5)
    replica.scan()

    def order(*local_ids: int, container_id: int = CONTAINER) -> None:
        delete_blocks(
            replica.store,
            replica.leases,
            [transaction(1, *local_ids, container_id=container_id)],
            stop=lambda: False,
            request_scan=lambda container_id, _: asked.append(container_id),
        )

    order(1, 2)
    order(1, container_id=OTHER)
    assert [] == asked

    order(3)
    replica.scan()

    assert [CONTAINER] == asked
    assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state


def test_deleting_waits_for_a_copy_under_way(tmp_path: Path) -> None:
    """
    While a replica is copied its blocks stay; afterwards they go.
    """
    source = Datanode("dn-a", tmp_path / "a")
    source.replica.create()
    leases = source.replica.leases
    with leases.share(CONTAINER):
        with pytest.raises(UnavailableError), leases.hold(CONTAINER, 0.01):
            pass
        with leases.hold(CONTAINER, 0.01, writes_chunks=False), leases.share(OTHER):
            assert leases.is_shared(CONTAINER)

    results = carry_out(source.replica, transaction(1, 1))

    assert results[0].done
    assert BlockId(1) in source.replica.store.view(CONTAINER).tombstones()
    source.close()
