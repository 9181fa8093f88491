"""Recording blocks of a shard again whose rows are lost, between real datanodes."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.plan.reconcile_outcome import ChunkOutcome, ChunkResult, ReconcileVerdict
from agent.reconstruct import row_repair
from agent.store.files import blockfile
from merkle.replica import BlockId, ReplicaState
from suture.ec.scheme import CodecName, Scheme
from tests.support.storage.ec_cluster import (
    CONTAINER,
    EcCluster,
    RecoveringDatanode,
    ec_cluster,
    flip,
    groups_of,
    wrong_shard,
)

RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
BLOCK = BlockId(1)
DAMAGE: dict[str, Callable[[RecoveringDatanode], None]] = {
    "BLOCK_ROW_MISSING": lambda node: node.replica.delete_row(BLOCK, CONTAINER),
    "BLOCK_ROW_DAMAGED": lambda node: node.replica.damage_row(BLOCK, CONTAINER),
}


def others(index: int) -> list[int]:
    """The shards beside one."""
    return [other for other in RS_3_2.indexes if other != index]


def cut(node: RecoveringDatanode, left_bytes: int | None) -> None:
    """Leave so many bytes of the file of a block; None: no file."""
    file = node.store.paths(CONTAINER).block_file(BLOCK)
    if left_bytes is None:
        file.unlink()
    else:
        os.truncate(file, left_bytes)


def fails(*_: object, **__: object) -> None:
    """Stand in for a write on a disk that is broken."""
    raise OSError(errno.EIO, "broken")


def outcome(
    cluster: EcCluster, index: int, peers: list[int]
) -> tuple[ReconcileVerdict, ChunkOutcome]:
    """Mend a shard from others; return what came of the one thing that was wrong."""
    result = cluster.mend(index, peers)
    [found] = result.chunks
    return result.result, found


@pytest.mark.parametrize("fault", list(DAMAGE))
@pytest.mark.parametrize("index", [1, 2, 4])
def test_a_block_without_its_row_is_recorded_again(tmp_path: Path, fault: str, index: int) -> None:
    """The row is recorded as its writer described it, for a data and a parity shard, and the
    bytes are not written.
    """
    with ec_cluster(tmp_path, RS_3_2, [100_000, 9_000]) as cluster:
        node = cluster.nodes[index]
        DAMAGE[fault](node)
        before = node.files(CONTAINER)
        cluster.serve()

        found, told = outcome(cluster, index, others(index))

        assert (ReconcileVerdict.CONVERGED, fault) == (found, told.difference)
        blocks = {name for name in before if name.endswith(".block")}
        assert blocks
        assert all(before[name] == node.files(CONTAINER)[name] for name in blocks)
        assert BLOCK == node.store.view(CONTAINER).block(BLOCK).bcsid
        cluster.assert_shard(index, index)


def test_a_shard_in_which_the_group_has_nothing_gets_an_empty_block(tmp_path: Path) -> None:
    """
    The third shard of a group of one cell: nothing is read for it.
    """
    with ec_cluster(tmp_path, RS_3_2, [1_000, 100_000]) as cluster:
        node = cluster.nodes[3]
        node.store.paths(CONTAINER).block_file(BLOCK).touch()
        DAMAGE["BLOCK_ROW_DAMAGED"](node)
        cluster.serve()

        found, _ = outcome(cluster, 3, others(3))

        assert ReconcileVerdict.CONVERGED is found
        cluster.assert_shard(3, 3)


def test_bytes_that_are_wrong_go_to_quarantine(tmp_path: Path) -> None:
    """No row shows that they are wrong. The chunk computed from the other shards is proof
    enough.
    """
    with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
        node = cluster.nodes[2]
        flip(node, BLOCK, 4096 + 5)
        wrong = node.store.paths(CONTAINER).block_file(BLOCK).read_bytes()[4096:8192]
        DAMAGE["BLOCK_ROW_MISSING"](node)
        cluster.serve()

        found, _ = outcome(cluster, 2, others(2))

        assert ReconcileVerdict.CONVERGED is found
        kept = [path.read_bytes() for path in node.replica.path.glob("hdds/*/quarantine/*.bytes")]
        assert [wrong] == kept
        cluster.assert_shard(2, 2)


def test_lost_row_is_restored_from_a_second_holder_of_the_shard(tmp_path: Path) -> None:
    """Two other shards are gone, so the cells of the second holder count like those of any
    source.
    """
    with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
        DAMAGE["BLOCK_ROW_MISSING"](cluster.nodes[2])
        cluster.serve()
        cluster.reconstruct(cluster.order([2], sources=[1, 3, 4]))

        found, _ = outcome(cluster, 2, [1, 3, 6])

        assert ReconcileVerdict.CONVERGED is found
        cluster.assert_shard(2, 2)


@pytest.mark.parametrize("left_bytes", [None, 0, 4_000, 29_000])
def test_a_file_that_ends_early_is_written_with_its_row(
    tmp_path: Path, left_bytes: int | None
) -> None:
    """
    At once: a process that died halfway would leave a row that looks whole to a scan.
    """
    with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
        node = cluster.nodes[2]
        cut(node, left_bytes)
        DAMAGE["BLOCK_ROW_MISSING"](node)
        cluster.serve()

        found, _ = outcome(cluster, 2, others(2))

        assert ReconcileVerdict.CONVERGED is found
        cluster.assert_shard(2, 2)


def test_failed_batch_records_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is missing as before, and the next repair finds it."""
    with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
        node = cluster.nodes[2]
        cut(node, 0)
        DAMAGE["BLOCK_ROW_MISSING"](node)
        cluster.serve()
        with monkeypatch.context() as broken:
            broken.setattr(blockfile, "overwrite_pieces", fails)
            found, told = outcome(cluster, 2, others(2))

        assert (ReconcileVerdict.PARTIAL, ChunkResult.FAILED) == (found, told.result)
        assert node.store.view(CONTAINER).block_row(BLOCK) is None
        assert ReconcileVerdict.CONVERGED is outcome(cluster, 2, others(2))[0]
        cluster.assert_shard(2, 2)


def test_a_file_that_ends_early_and_is_too_large_for_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The shard is rebuilt elsewhere.
    """
    monkeypatch.setattr(row_repair, "BATCH_BYTES_MAX", 30_000)
    with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
        node = cluster.nodes[2]
        cut(node, 29_000)
        DAMAGE["BLOCK_ROW_MISSING"](node)
        cluster.serve()
        before = node.files(CONTAINER)

        found, told = outcome(cluster, 2, others(2))

        assert (ReconcileVerdict.PARTIAL, ChunkResult.SKIPPED) == (found, told.result)
        assert "its file ends before byte" in told.message
        assert before == node.files(CONTAINER)


def test_block_unknown_to_other_shards_is_left_without_a_row(tmp_path: Path) -> None:
    """A client wrote the block to one shard and gave up, so its length is unknown."""
    instead = {2: groups_of(RS_3_2, [100_000, 9_000])}
    with ec_cluster(tmp_path, RS_3_2, [100_000], instead=instead) as cluster:
        node = cluster.nodes[2]
        node.replica.delete_row(BlockId(2), CONTAINER)
        cluster.serve()

        found, told = outcome(cluster, 2, others(2))

        assert (ReconcileVerdict.PARTIAL, ChunkResult.FAILED) == (found, told.result)
        assert "0 of 3 sources know its length" in told.message
        assert ReplicaState.UNHEALTHY is node.store.replica(CONTAINER).state


def test_a_source_that_is_wrong_is_named_and_left_aside(tmp_path: Path) -> None:
    """Its checksums fit its bytes. The writer's record of the stripe distinguishes it from the
    others.
    """
    with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2)) as cluster:
        DAMAGE["BLOCK_ROW_MISSING"](cluster.nodes[2])
        cluster.serve()

        found, _ = outcome(cluster, 2, others(2))

        assert ReconcileVerdict.CONVERGED is found
        cluster.assert_shard(2, 2)


def test_undecidable_contradiction_records_no_row(tmp_path: Path) -> None:
    """The three sources do not give what was recorded, and there is no fourth."""
    with ec_cluster(tmp_path, RS_3_2, [50_000], instead=wrong_shard(RS_3_2)) as cluster:
        DAMAGE["BLOCK_ROW_MISSING"](cluster.nodes[2])
        cluster.serve()

        found, told = outcome(cluster, 2, [1, 3, 5])

        assert (ReconcileVerdict.PARTIAL, ChunkResult.FAILED) == (found, told.result)
        assert "do not match the writer's record" in told.message


def test_interrupted_row_repair_is_resumed_later(tmp_path: Path) -> None:
    """The partial row has no group length, and bytes lie behind it, so a scan reports it."""
    with ec_cluster(tmp_path, RS_3_2, [100_000]) as cluster:
        node = cluster.nodes[2]
        DAMAGE["BLOCK_ROW_MISSING"](node)
        cluster.serve()
        asked = iter([False, False])

        stopped = cluster.mend(2, others(2), stop=lambda: next(asked, True))
        chunk_count = len(node.store.view(CONTAINER).block(BLOCK).chunks)
        found, told = outcome(cluster, 2, others(2))

        assert (ReconcileVerdict.INTERRUPTED, 3) == (stopped.result, chunk_count)
        assert (ReconcileVerdict.CONVERGED, "TRAILING_BYTES") == (found, told.difference)
        cluster.assert_shard(2, 2)
