"""A replica whose small blocks share a pack file at the target, and functions that damage it."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from agent.plan.reconcile_outcome import ReconcileVerdict
from agent.store.index.environment import Index
from agent.store.index.packformat import PAGE_BYTES, PackedPlace
from agent.store.index.transactions import IndexChange
from agent.store.recovery.fsck import fsck
from merkle.replica import BlockId, ReplicaState
from scanner.finding import DamageFault
from tests.support.storage.datanodes import Datanode
from tests.support.storage.pushed import MIB, Pair, serving_pair
from tests.support.storage.stored_replica import CLUSTER, CONTAINER, MAP_BYTES

SIZES = {1: 1, 2: 4_000, 4: PAGE_BYTES, 5: 65_536, 6: PAGE_BYTES + 1}
SIZES |= dict.fromkeys((7, *range(9, 40), 60), 5_000)
ODD = {
    3: (70_000,),
    8: (50_000, 60_000),
    50: (65_537,),
    51: (100, 200),
    52: (3 * MIB,),
    53: (),
}  # neither small nor alone
OWN_FILES = {f"{block_id}.block" for block_id, sizes in ODD.items() if sizes}
TWO = BlockId(2)


@contextmanager
def packed_pair(path: Path) -> Iterator[Pair]:
    """Yield two datanodes. The target received a replica from the source, and stored the small
    blocks in a pack."""
    with serving_pair(path, packed_count_min=5) as made:
        replica = made.source.replica
        replica.store.create_container(CONTAINER)
        for block_id, size in SIZES.items():
            replica.put(block_id, size)
        for block_id, sizes in ODD.items():
            replica.put(block_id, *sizes)
        replica.store.close_container(CONTAINER, bcsid=0, force=True)
        made.source.scan()
        assert "imported" == made.source.replicate(made.target).result
        yield made


def pack_of(datanode: Datanode) -> Path:
    """Return the path of the replica's pack."""
    return datanode.replica.store.paths(CONTAINER).pack


def place_of(datanode: Datanode, block_id: int) -> PackedPlace:
    """Return the position of a block in the pack."""
    place = datanode.replica.store.pack(CONTAINER).of(BlockId(block_id))
    assert place is not None, "it is not in the pack"
    return place


def contents(datanode: Datanode) -> dict[int, bytes]:
    """Return the bytes of every block, as clients read them."""
    store = datanode.replica.store
    return {
        block.block_id: b"".join(
            store.view(CONTAINER).read(block.block_id, chunk.offset, chunk.length_bytes)
            for chunk in block.chunks
        )
        for block in store.view(CONTAINER).blocks()
    }


def damage(datanode: Datanode, block_id: int, new: bytes = b"!") -> None:
    """Overwrite the first bytes of a packed block in the pack file, bypassing the store."""
    fd = os.open(pack_of(datanode), os.O_RDWR)
    try:
        os.pwrite(fd, new, place_of(datanode, block_id).offset)
    finally:
        os.close(fd)


def findings(datanode: Datanode) -> list[tuple[int, DamageFault]]:
    """Scan the replica; return the block id and the fault of each finding."""
    datanode.scan()
    return [(one.block_id, one.fault) for one in datanode.replica.store.findings(CONTAINER)]


def mended(pair: Pair, state: ReplicaState = ReplicaState.CLOSED) -> int:
    """Reconcile the target with the source; return the number of fetched chunks. Fail if the
    replica is not equal to the source's and without findings afterwards."""
    before = len(pair.source.reads)
    result = pair.target.reconcile([pair.source])
    assert ReconcileVerdict.CONVERGED is result.result, result
    assert [] == findings(pair.target)
    assert state is pair.target.replica.store.replica(CONTAINER).state
    assert contents(pair.source) == contents(pair.target)
    return len(pair.source.reads) - before


def problems(pair: Pair) -> dict[str, str]:
    """Stop the target, return the problems that fsck finds, and start the target again."""
    pair.target.replica.close()
    found = fsck(pair.path / "b", read_data=True).problems
    pair.target.replica.reopen()
    return {problem.kind: Path(problem.path).name for problem in found}


@contextmanager
def packed_rows(pair: Pair) -> Iterator["lmdb.Transaction[bytes]"]:
    """Yield a transaction on the packed rows of the target. The store is closed during the block,
    as if another process changed the rows."""
    pair.target.replica.close()
    path = pair.path / "b" / "hdds" / CLUSTER / "db"
    with lmdb.open(str(path), max_dbs=16, map_size=MAP_BYTES) as environment:
        packed = environment.open_db(b"packed", create=False)
        with environment.begin(db=packed, write=True) as transaction:
            yield transaction
    pair.target.replica.reopen()


def lose_row(pair: Pair, block_id: int) -> None:
    """Remove a block's row at the target."""
    index = pair.target.replica.store.volume_set.places[CONTAINER].index
    index.write(lambda rows: rows.delete_block(CONTAINER, BlockId(block_id)))


def row_key(block_id: int) -> bytes:
    """Return the key of a packed row."""
    return CONTAINER.to_bytes(8) + block_id.to_bytes(8)


def note_commits(monkeypatch: pytest.MonkeyPatch, events: list[str]) -> None:
    """Record the commits of an index."""
    real = Index.write

    def write(index: Index, change: Callable[[IndexChange], object]) -> object:
        events.append("commit")
        return real(index, change)

    monkeypatch.setattr(Index, "write", write)
