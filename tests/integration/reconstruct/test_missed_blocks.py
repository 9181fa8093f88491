"""A shard that was closed before its last commits gets them in place, and their id."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.plan.reconcile_outcome import ChunkResult, ReconcileResult, ReconcileVerdict
from agent.reconstruct import row_repair
from merkle.replica import BlockId, ContainerId, ReplicaState
from suture.ec.scheme import CodecName, Scheme
from suture.errors import Code, RefusedError
from tests.support.storage.ec_cluster import (
    CONTAINER,
    EcCluster,
    ec_cluster,
    flip,
    groups_of,
    write_shard,
)

RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
LENGTHS = (20_000, 30_000, 100)  # of the last one, shard 2 has nothing
LATE = 2  # the shard that missed something
OTHERS = (1, 3, 4, 5)
LAST = 3  # the id of the last commit
Q = ReplicaState.QUASI_CLOSED


@contextmanager
def behind(
    path: Path, *, has: Sequence[int] = (1,), lengths_bytes: Sequence[int] = LENGTHS
) -> Iterator[EcCluster]:
    """Serve a group of shards of which one has these blocks only, and is QUASI_CLOSED."""
    with ec_cluster(path, RS_3_2, lengths_bytes) as cluster:
        store = cluster.nodes[LATE].store
        store.delete_container(CONTAINER, force=True)
        groups = {n: made for n, made in cluster.groups.items() if n in has}
        write_shard(store, LATE, groups, last_bcsid=LAST)
        assert Q is store.replica(CONTAINER).state
        cluster.serve()
        yield cluster


def told(result: ReconcileResult) -> list[tuple[int, str, ChunkResult]]:
    """Return what was done, by block."""
    return [(one.block_id, one.difference, one.result) for one in result.chunks]


def facts(cluster: EcCluster) -> tuple[ReplicaState, int, int]:
    """Return state, commit id and findings of the shard."""
    found = cluster.nodes[LATE].store.replica(CONTAINER)
    return found.state, found.bcsid, found.finding_count


def rows(cluster: EcCluster) -> list[tuple[BlockId, bytes]]:
    """Return the rows of the shard."""
    return list(cluster.nodes[LATE].store.view(CONTAINER).block_rows())


def test_late_shard_gets_its_missed_blocks_and_can_be_closed(tmp_path: Path) -> None:
    """The blocks include one without a cell in this shard. A close at the last commit then makes
    the shard CLOSED.
    """
    with behind(tmp_path) as cluster:
        result = cluster.mend(LATE, OTHERS)

        assert ReconcileVerdict.CONVERGED is result.result
        assert [
            (2, "MISSING_BLOCK", ChunkResult.REPAIRED),
            (3, "MISSING_BLOCK", ChunkResult.REPAIRED),
        ] == told(result)[:2]
        assert (Q, LAST, 0) == facts(cluster)
        again = cluster.mend(LATE, OTHERS)
        assert (ReconcileVerdict.NOTHING_TO_DO, ()) == (again.result, again.chunks)
        cluster.nodes[LATE].store.close_container(CONTAINER, bcsid=LAST)
        cluster.assert_shard(LATE, LATE)


def test_deleted_blocks_are_not_missed_by_a_late_shard(tmp_path: Path) -> None:
    """The shard lacks only the commit id of the shards that have the same blocks."""
    with behind(tmp_path) as cluster:
        for node in cluster.nodes.values():
            if node.store.replica_ids():
                node.store.free_blocks(CONTAINER, [BlockId(2), BlockId(3)])
        node = cluster.nodes[LATE]
        node.scan(CONTAINER)
        changed: list[ContainerId] = []
        node.store.on_change = changed.append

        result = cluster.mend(LATE, OTHERS, is_scanned=True)

        assert [(0, "BCSID", ChunkResult.REWRITTEN)] == [(0, *one[1:]) for one in told(result)]
        assert ReconcileVerdict.CONVERGED is result.result
        assert (Q, LAST, 0) == facts(cluster)
        assert [CONTAINER] == changed  # the control plane hears of it


def test_block_deleted_here_is_not_made_again(tmp_path: Path) -> None:
    """The other shards have not deleted the block yet."""
    with behind(tmp_path, has=(1, 2)) as cluster:
        cluster.nodes[LATE].store.free_blocks(CONTAINER, [BlockId(2)])

        cluster.mend(LATE, OTHERS)

        with pytest.raises(RefusedError) as gone:
            cluster.nodes[LATE].store.view(CONTAINER).block(BlockId(2))
        assert Code.NO_SUCH_BLOCK is gone.value.code
        assert (Q, LAST, 0) == facts(cluster)


@pytest.mark.parametrize(("block_id", "bcsid"), [(2, 1), (1, LAST)])
def test_block_that_too_few_shards_have_is_not_made(
    tmp_path: Path, block_id: int, bcsid: int
) -> None:
    """The block may never have been committed. If it may be committed, the commit id that covers
    it is not taken over; an id older than the shard's own blocks is covered already.
    """
    with behind(tmp_path, has=[3 - block_id]) as cluster:
        for index in (3, 4, 5):
            store = cluster.nodes[index].store
            store.delete_container(CONTAINER, force=True)
            groups = {n: made for n, made in cluster.groups.items() if n != block_id}
            write_shard(store, index, groups)

        result = cluster.mend(LATE, OTHERS)

        assert block_id not in {one.block_id for one in result.chunks}
        assert (Q, bcsid, 0) == facts(cluster)


def test_a_block_that_is_shorter_here_keeps_the_id_as_it_is(tmp_path: Path) -> None:
    """The block grew in a missed commit. Blocks that are missing as a whole are made all the
    same.
    """
    with behind(tmp_path) as cluster:
        store = cluster.nodes[LATE].store
        store.delete_container(CONTAINER, force=True)
        short = groups_of(RS_3_2, [LENGTHS[0], 10_000])
        write_shard(store, LATE, short, last_bcsid=LAST)

        result = cluster.mend(LATE, OTHERS)

        assert [(3, "MISSING_BLOCK", ChunkResult.REPAIRED)] == told(result)
        assert (Q, 2, 0) == facts(cluster)


def test_without_one_of_the_others_the_id_is_not_taken_over(tmp_path: Path) -> None:
    """The unreachable shard may have a block that no other shard lists. The blocks of the others
    are made all the same.
    """
    with behind(tmp_path) as cluster:
        cluster.nodes[5].stop_serving()

        cluster.mend(LATE, OTHERS)

        assert (Q, 1, 0) == facts(cluster)
        assert LAST == cluster.nodes[LATE].store.view(CONTAINER).block(BlockId(LAST)).bcsid


def test_uncomputable_block_keeps_the_commit_id(tmp_path: Path) -> None:
    """Two of the other shards are damaged in one stripe of the block."""
    with behind(tmp_path) as cluster:
        for index in (1, 3):
            flip(cluster.nodes[index], 2, 5)

        result = cluster.mend(LATE, OTHERS)

        assert (2, "MISSING_BLOCK", ChunkResult.FAILED) in told(result)
        assert ReconcileVerdict.PARTIAL is result.result
        assert (Q, 1, 0) == facts(cluster)


@pytest.mark.parametrize("count", range(9))
def test_interrupted_repair_keeps_the_commit_id(tmp_path: Path, count: int) -> None:
    """The id stays as long as a block is missing, and the next reconcile continues."""
    with behind(tmp_path) as cluster:
        asked: list[None] = []

        def stop() -> bool:
            asked.append(None)
            return len(asked) > count

        cluster.mend(LATE, OTHERS, stop=stop)
        early = facts(cluster)
        has_all = [1, 2, 3] == [block_id for block_id, _ in rows(cluster)]
        cluster.mend(LATE, OTHERS)

        assert early in {(Q, 1, 0), (Q, LAST, 0) if has_all else (Q, 1, 0)}
        assert (Q, LAST, 0) == facts(cluster)


def test_block_too_large_for_a_batch_keeps_the_commit_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block is not made in place; all sources are whole."""
    monkeypatch.setattr(row_repair, "BATCH_BYTES_MAX", 1000)
    with behind(tmp_path) as cluster:
        result = cluster.mend(LATE, OTHERS)

        assert (2, "MISSING_BLOCK", ChunkResult.SKIPPED) in told(result)
        assert (Q, 1, 0) == facts(cluster)


def test_damage_that_the_last_read_finds_keeps_the_id_as_it_is(tmp_path: Path) -> None:
    """A damaged block does not count as present."""
    with behind(tmp_path) as cluster:
        node = cluster.nodes[LATE]

        def scan(container_id: ContainerId) -> None:
            flip(node, 1, 5)
            node.scan(container_id)

        node.scan(CONTAINER)
        cluster.mend(LATE, OTHERS, is_scanned=True, scan=scan)

        assert (ReplicaState.UNHEALTHY, 1, 1) == facts(cluster)


def test_damage_comes_first(tmp_path: Path) -> None:
    """A damaged shard takes over no commit id. When it is whole, it gets the missing blocks."""
    with behind(tmp_path) as cluster:
        flip(cluster.nodes[LATE], 1, 5)

        first = cluster.mend(LATE, OTHERS)
        between = facts(cluster)
        cluster.mend(LATE, OTHERS)

        assert {1} == {one.block_id for one in first.chunks}
        assert (Q, 1, 0) == between
        assert (Q, LAST, 0) == facts(cluster)


def test_a_closed_one_is_left_alone(tmp_path: Path) -> None:
    """
    Nothing is asked for.
    """
    with ec_cluster(tmp_path, RS_3_2, LENGTHS) as cluster:
        cluster.serve()

        result = cluster.mend(LATE, OTHERS)

        assert ReconcileVerdict.NOTHING_TO_DO is result.result
        assert () == result.peers
        assert groups_of(RS_3_2, LENGTHS).keys() == cluster.groups.keys()
