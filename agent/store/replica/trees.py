"""Tree files: reading, rebuilding, and replacement.

The agent first writes the new file under a temporary name, and a journal entry. Then one LMDB
transaction checks the generation, renames the file and writes the replica row.

The check and the rename are in one write transaction. Therefore, an older tree never replaces a
newer one (Ozone has this race, HDDS-14908). After a crash between rename and commit, the file is
one generation ahead of the index, and the journal has an entry. The next start then records the
tree of the file (startup_recovery.py).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from agent.store.index.rows import ReplicaRow, TreeEntry
from agent.store.index.transactions import IndexChange, IndexView
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica.path_conflicts import make_home
from agent.store.volumes.volume import Volume
from merkle.blockrow import decode_block, encode_block, is_intact
from merkle.checksum import Algorithm
from merkle.damaged_data import DamagedData
from merkle.replica import TREE_STATES, BlockId, ContainerId
from merkle.tree import Tree, with_tombstones
from merkle.tree_building import build_from_rows
from merkle.tree_codec import decode_tree, encode_tree, stored_bytes
from merkle.tree_summary import TreeSummary
from scanner.finding import DamageFault, ScanFinding
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.durable import TooLarge, block_errors, raise_shortage, read_file, stage

TREE_BYTES_MAX: Final = 256 * 1024**2  # a tree of seven million blocks, more than any container has
READ_ATTEMPTS_MAX: Final = 4  # a scan may commit between two reads, but not four times in a row

Alter: TypeAlias = Callable[[IndexChange, ReplicaRow], ReplicaRow]


def load_tree(replica: ReplicaHandle) -> Tree:
    """Return the tree of a replica from its file.

    If the file does not match the index, rebuild the tree. Nothing is written, because the next
    scan finds and replaces a damaged file. Raise `RefusedError(UNCLOSED_CONTAINER_IO)` if the
    replica is not closed yet.
    """
    volume, container_id = replica.volume, replica.container_id
    with volume.index.read() as rows:
        row = tree_replica(rows, container_id)
    for _ in range(READ_ATTEMPTS_MAX):
        seen = row
        tree = read_tree(volume, container_id)
        if tree is not None and is_current(tree, seen.tree):
            return tree
        with volume.index.read() as rows:
            row = tree_replica(rows, container_id)
            if row.tree == seen.tree:
                return rebuilt_tree(rows, replica.options.algorithm, container_id, row)
    raise RefusedError(
        Code.INVALID_CONTAINER_STATE, f"tree of container {container_id} keeps changing"
    )


def tree_replica(rows: IndexView, container_id: ContainerId) -> ReplicaRow:
    """Return the replica row.

    Raise `RefusedError(UNCLOSED_CONTAINER_IO)` if a replica in this state has no tree.
    """
    row = rows.replica(container_id)
    if row.state not in TREE_STATES:
        raise RefusedError(
            Code.UNCLOSED_CONTAINER_IO,
            f"container {container_id} is {row.state}: it has no tree before it is closed",
            container_id=container_id,
            state=row.state,
        )
    return row


def read_tree(volume: Volume, container_id: ContainerId) -> Tree | None:
    """Return the tree in the tree file of a replica, or None if the file is missing or invalid.

    Raise `UnavailableError(BUSY)` if the host is short of descriptors or memory.
    """
    path = volume.paths(container_id).tree
    try:
        return read_tree_file(path, container_id)
    except (OSError, DamagedData) as error:
        raise_shortage(error, path)
        return None


def read_tree_file(
    path: Path, container_id: ContainerId, read: Callable[[Path, int, int], bytes] | None = None
) -> Tree:
    """Return the tree in a file. Read no more bytes than the header of the file declares.

    Raise OSError if the file cannot be read, and `DamagedData` if it is invalid. `read` replaces
    the function that reads the bytes.
    """
    try:
        data = read_file(
            path,
            bytes_max=TREE_BYTES_MAX,
            expected_bytes=lambda head: stored_bytes(head, container_id),
            read=read,
        )
    except TooLarge as error:
        raise DamagedData(f"{path.name}: {error.strerror}") from error
    return decode_tree(data, container_id)


def is_current(tree: Tree, summary: TreeSummary | None) -> bool:
    """Return whether the tree is the tree that the index records for the replica."""
    return summary is not None and tree.summary() == summary


def rebuilt_tree(
    rows: IndexView, algorithm: Algorithm, container_id: ContainerId, row: ReplicaRow
) -> Tree:
    """Return a tree that is built from the block rows and tombstones of the index.

    The tree omits chunks that findings report as damaged. Therefore, it contains nothing that the
    last scan did not verify.
    """
    tombstones = rows.tombstones(container_id)
    damage = [finding for finding in rows.findings(container_id) if finding.is_damage]
    blocks: Iterator[tuple[BlockId, bytes]] = iter(())
    if all(finding.fault is not DamageFault.CHUNKS_DIRECTORY_MISSING for finding in damage):
        blocks = rows.blocks(container_id)
    try:
        return build_from_rows(
            whole_rows(blocks, damage) if damage else blocks,
            tombstones,
            algorithm=algorithm,
            generation=row.generation,
        )
    except DamagedData:
        return build_from_rows(
            whole_rows(rows.blocks(container_id), damage),
            tombstones,
            algorithm=algorithm,
            generation=row.generation,
        )


def whole_rows(
    blocks: Iterator[tuple[BlockId, bytes]], damage: list[ScanFinding]
) -> Iterator[tuple[BlockId, bytes]]:
    """Yield the intact block rows, without damaged blocks and chunks.

    Findings report these blocks and chunks as damaged.
    """
    lost = {
        finding.block_id for finding in damage if finding.fault is DamageFault.BLOCK_FILE_MISSING
    }
    chunks: dict[BlockId, set[int]] = {}
    for finding in damage:
        if finding.offset >= 0:
            chunks.setdefault(finding.block_id, set()).add(finding.offset)
    for block_id, row in blocks:
        if block_id in lost or not is_intact(block_id, row):
            continue
        yield block_id, _without(block_id, row, chunks.get(block_id))


def _without(block_id: BlockId, row: bytes, offsets: set[int] | None) -> bytes:
    if not offsets:
        return row
    block = decode_block(block_id, row)
    kept = tuple(chunk for chunk in block.chunks if chunk.offset not in offsets)
    return encode_block(replace(block, chunks=kept))


def without_blocks(tree: Tree, tombstones: Mapping[BlockId, int]) -> Tree:
    """Return the tree with tombstones in the place of these blocks.

    `tombstones` has their checksums.
    """
    ids = np.fromiter(tombstones.keys(), dtype=np.uint64, count=len(tombstones))
    checksums = np.fromiter(tombstones.values(), dtype=np.uint64, count=len(tombstones))
    return with_tombstones(tree, block_ids=ids, checksums=checksums)


def with_index_tombstones(rows: IndexView, container_id: ContainerId, tree: Tree) -> Tree:
    """Return the tree, with the tombstones of the index that it lacks."""
    known = rows.tombstones(container_id)
    dead = tree.tombstones()
    missing = {block_id: known[block_id] for block_id in known if block_id not in dead}
    return without_blocks(tree, missing)


def commit_tree(replica: ReplicaHandle, tree: Tree, *, base_generation: int, alter: Alter) -> bool:
    """Commit `tree` with the generation that follows `base_generation`.

    `alter` returns the new replica row, and makes the other changes of the same commit. Return
    False, with nothing changed, if the replica no longer has the generation `base_generation`.
    """
    volume, container_id = replica.volume, replica.container_id
    numbered = tree.with_generation(base_generation + 1)
    entry = TreeEntry(numbered.generation)
    path = replica.paths.tree
    with block_errors(path):
        make_home(volume, container_id, path)  # lost directories must not block a new tree
        staged = stage(path, encode_tree(numbered, container_id))

    def intend(rows: IndexChange) -> bool:
        if rows.replica(container_id).generation != base_generation:
            return False
        rows.begin_work(container_id, entry)
        return True

    def change(rows: IndexChange) -> bool:
        row = rows.replica(container_id)
        if row.generation != base_generation:
            rows.end_work(container_id, entry)
            return False
        with block_errors(path):
            staged.publish()
        altered = alter(rows, row)
        rows.put_replica(
            container_id, replace(altered, generation=numbered.generation, tree=numbered.summary())
        )
        rows.end_work(container_id, entry)
        return True

    try:
        return volume.index.write(intend) and volume.index.write(change)
    except SutureError:
        if not staged.ended:
            with suppress(SutureError):  # if this fails, the next start drops the entry
                volume.index.write(lambda rows: rows.end_work(container_id, entry))
        raise
    finally:
        staged.discard()
