"""Deletion of blocks and containers. The delete is recorded before the data is removed.

To delete blocks, one commit records the tree with tombstones, removes the rows and writes a journal
entry. Then the files are unlinked, and the journal entry is removed. To delete a container, the
agent sets the state DELETED, renames the directory to tmp/, deletes the rows and removes the files.

Therefore, a crash may leave bytes without a record, but never a record without bytes. The next
start finishes the deletes that have a journal entry or the state DELETED.
"""

import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agent.store.files.blockfile import ABSENT
from agent.store.index.rows import ReplicaRow, Texts, UnlinkEntry, moved_on
from agent.store.index.transactions import IndexChange, IndexView
from agent.store.replica import quarantine
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica.packs import give_back_pages, place_of, remove_spent
from agent.store.replica.path_conflicts import has_home, put_aside
from agent.store.replica.states import ReplicaEvent, next_state
from agent.store.replica.trees import commit_tree, load_tree, without_blocks
from agent.store.verification_log.log_entries import log_delete
from agent.store.volumes.volume import Volume
from merkle.blockrow import decode_block
from merkle.damaged_data import DamagedData
from merkle.replica import TREE_STATES, BlockId, ContainerId, ReplicaState
from merkle.tree import Tree
from merkle.tree_building import build_from_rows
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.durable import (
    block_errors,
    disk_errors,
    move,
    raise_shortage,
    remove,
    remove_file,
    remove_tree,
    sync_directory,
)

GRAVES_MAX: Final = 1_000  # deleted replicas whose files one check of a volume removes
GRAVES_FAILED_MAX: Final = 3  # each failure may take half a minute on a failing disk


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """Result of a delete.

    `freed` has the size in bytes of each deleted block. `left` has the error of each block whose
    file could not be removed, including blocks of earlier deletes. `was_last_damage` is True if the
    deleted blocks contained all known damage of the replica. A scan must then confirm that the
    replica is healthy.
    """

    freed: Mapping[BlockId, int]
    left: Mapping[BlockId, SutureError]
    was_last_damage: bool

    def checked(self) -> "DeleteResult":
        """Return this result if all files were removed. Otherwise raise the first error."""
        for failure in self.left.values():
            raise failure
        return self


def delete_blocks(
    replica: ReplicaHandle, block_ids: Iterable[BlockId], kept_ids: Collection[BlockId] = ()
) -> DeleteResult:
    """Delete blocks of a closed replica. Move the data of the blocks in `kept_ids` to quarantine.

    A repeated call removes files that an earlier call could not remove. Raise
    `RefusedError(DELETE_ON_OPEN_CONTAINER)` if the replica is not closed.
    """
    volume, container_id = replica.volume, replica.container_id
    with volume.index.read() as rows:
        row = rows.replica(container_id)
        if row.state not in TREE_STATES:
            raise RefusedError(
                Code.DELETE_ON_OPEN_CONTAINER,
                f"container {container_id} is {row.state}: its blocks cannot be deleted",
                container_id=container_id,
            )
    tree = load_tree(replica)  # read after the row, so never older than it
    with volume.index.read() as rows:
        tombstones = fresh_tombstones(rows, container_id, tree, sorted(set(block_ids)))
        freed = {key: row_bytes(key, rows.block(container_id, key) or b"") for key in tombstones}
        has_leftover = bool(to_unlink(rows, container_id).block_ids)
    left: Mapping[BlockId, SutureError] = {}
    if tombstones:
        left = replace_by_tombstones(replica, row, tree, tombstones, kept_ids=kept_ids)
    elif has_leftover:  # files that an earlier delete could not remove
        left = unlink_blocks(replica)
    with volume.index.read() as rows:
        after = rows.replica(container_id)
    return DeleteResult(freed, left, bool(row.finding_count and not after.finding_count))


def fresh_tombstones(
    rows: IndexView, container_id: ContainerId, tree: Tree, block_ids: Iterable[BlockId]
) -> dict[BlockId, int]:
    """Return the checksums for the new tombstones of `block_ids`, by block id.

    Omit a block that neither the index nor the tree has, unless a scan found it damaged. The
    checksum is computed from the block row, not from bytes that a scan has read. Therefore, all
    replicas compute the same checksum, even if the data of one is damaged. Without an intact row,
    the checksum is taken from the tree, or is 0.
    """
    tombstones = {}
    damaged = {one.block_id for one in rows.findings(container_id) if one.is_damage}
    for block_id in block_ids:
        raw = rows.block(container_id, block_id)
        index = tree.index_of(block_id)
        in_tree = index >= 0 and not tree.deleted[index]
        if raw is None and not in_tree and block_id not in damaged:
            continue
        checksum = int(tree.block_checksums[index]) if in_tree else 0
        if raw is not None:
            try:
                alone = build_from_rows([(block_id, raw)], {}, algorithm=tree.algorithm)
                checksum = int(alone.block_checksums[0])
            except DamagedData:
                pass
        tombstones[block_id] = checksum
    return tombstones


def replace_by_tombstones(
    replica: ReplicaHandle,
    row: ReplicaRow,
    tree: Tree,
    tombstones: Mapping[BlockId, int],
    *,
    kept_ids: Collection[BlockId] = (),
) -> Mapping[BlockId, SutureError]:
    """Replace blocks by tombstones, and remove their data.

    Return the errors of files that remain, by block id. The data of the blocks in `kept_ids` is
    moved to quarantine. Raise `RefusedError` if the replica has changed since `row` was read.
    """

    def alter(rows: IndexChange, row: ReplicaRow) -> ReplicaRow:
        return record_tombstones(rows, replica.container_id, row, tombstones, kept_ids=kept_ids)

    committed = commit_tree(
        replica, without_blocks(tree, tombstones), base_generation=row.generation, alter=alter
    )
    if not committed:
        raise changed_meanwhile(replica.container_id)
    return unlink_blocks(replica)


def record_tombstones(
    rows: IndexChange,
    container_id: ContainerId,
    row: ReplicaRow,
    tombstones: Mapping[BlockId, int],
    *,
    kept_ids: Collection[BlockId] = (),
) -> ReplicaRow:
    """Replace block rows by tombstones, and write the journal entry that unlinks their files.

    The entry moves the files of the blocks in `kept_ids` to quarantine. Return the updated replica
    row.
    """
    bytes_gone = 0
    blocks_gone = 0
    told = dict[BlockId, Texts]()
    for block_id, checksum in tombstones.items():
        raw = rows.block(container_id, block_id)
        if raw is not None:
            blocks_gone += 1
            bytes_gone += row_bytes(block_id, raw)
            if block_id in kept_ids:
                told[block_id] = _metadata(block_id, raw)
            rows.delete_block(container_id, block_id)
        rows.put_tombstone(container_id, block_id, checksum)
    row = without_findings(rows, container_id, row, tombstones)
    unfinished = to_unlink(rows, container_id)  # left if an earlier unlink failed
    block_ids = sorted(set(unfinished.block_ids) | set(tombstones))
    kept = {block_id: told.get(block_id, ()) for block_id in tombstones if block_id in kept_ids}
    rows.begin_work(container_id, UnlinkEntry(tuple(block_ids), {**unfinished.kept, **kept}))
    return replace(
        row,
        block_count=max(0, row.block_count - blocks_gone),
        used_bytes=max(0, row.used_bytes - bytes_gone),
    )


def without_findings(
    rows: IndexChange, container_id: ContainerId, row: ReplicaRow, block_ids: Collection[BlockId]
) -> ReplicaRow:
    """Remove the findings of deleted blocks. Return the updated replica row.

    The state of the replica stays the same until a scan finds the remaining blocks healthy.
    """
    findings = list(rows.findings(container_id))
    gone = [one for one in findings if one.block_id in block_ids]
    if not gone:
        return row
    rows.replace_findings(container_id, [one for one in findings if one.block_id not in block_ids])
    return replace(
        row,
        finding_count=max(0, row.finding_count - sum(one.is_damage for one in gone)),
        contradiction_count=max(
            0, row.contradiction_count - sum(one.is_contradiction for one in gone)
        ),
    )


def row_bytes(block_id: BlockId, raw: bytes) -> int:
    """Return the number of data bytes that a block row records, or 0 if the row is damaged."""
    try:
        return sum(chunk.length_bytes for chunk in decode_block(block_id, raw).chunks)
    except DamagedData:
        return 0


def _metadata(block_id: BlockId, raw: bytes) -> Texts:
    """Return the client metadata in a block row, or an empty tuple if the row is damaged."""
    try:
        return decode_block(block_id, raw).metadata
    except DamagedData:
        return ()


def to_unlink(rows: IndexView, container_id: ContainerId) -> UnlinkEntry:
    """Return the unlink entry of a container in the journal.

    If there is none, return an entry without blocks.
    """
    for _, entry in rows.journal(container_id):
        if isinstance(entry, UnlinkEntry):
            return entry
    return UnlinkEntry(())


def unlink_blocks(replica: ReplicaHandle) -> Mapping[BlockId, SutureError]:
    """Remove the files of the blocks in the journal's unlink entry, or move them to quarantine.

    Remove the pack file if none of its blocks is left. Then remove the journal entry. A block whose
    file cannot be removed stays in the journal. Return the errors of these blocks, by block id.
    """
    volume, container_id = replica.volume, replica.container_id
    with volume.index.read() as rows:
        entry = to_unlink(rows, container_id)
        packed = [rows.packed(container_id, block_id) for block_id in entry.block_ids]
        dead = set(entry.block_ids)
        is_spent = all(block_id in dead for block_id, _ in rows.packed_rows(container_id))
    gone = [place for place in packed if place is not None]
    paths = replica.paths
    left: dict[BlockId, SutureError] = {}
    removed = False
    for block_id in entry.block_ids if has_home(paths) else ():
        try:
            if block_id in entry.kept:
                keep_block(replica, block_id, entry.kept[block_id])
            removed |= remove_block(volume, container_id, block_id)
        except SutureError as error:
            left[block_id] = error
    with disk_errors(paths.chunks):
        has_spent = is_spent and remove_spent(paths)
        if not has_spent:
            give_back_pages(paths, gone)
        if removed or has_spent:
            sync_directory(paths.chunks)

    def change(rows: IndexChange) -> None:
        rows.delete_packed(container_id, entry.block_ids)
        rows.end_work(container_id, entry)
        if left:
            kept = {block_id: texts for block_id, texts in entry.kept.items() if block_id in left}
            rows.begin_work(container_id, UnlinkEntry(tuple(left), kept))

    volume.index.write(change)
    return left


def remove_block(volume: Volume, container_id: ContainerId, block_id: BlockId) -> bool:
    """Remove the file of a block. Return whether the file existed. The caller syncs the directory.

    If there is a directory in the place of the file, move it to quarantine, because its content is
    unknown. Raise `BlockFailed` if the file cannot be removed.
    """
    path = volume.paths(container_id).block_file(block_id)
    with block_errors(path):
        try:
            return remove_file(path)
        except (IsADirectoryError, PermissionError):
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise
            put_aside(volume, container_id, block_id, path)
            return True


def keep_block(replica: ReplicaHandle, block_id: BlockId, metadata: Texts) -> None:
    """Move a block's file to quarantine, or copy the block's part of a pack file to quarantine.

    If the part of the pack file cannot be read, copy nothing. The note of the copy contains
    `metadata`, which includes the name of the key.
    """
    volume = replica.volume
    with volume.index.read() as rows:
        place = place_of(rows, replica.paths, replica.container_id, block_id)
    with block_errors(place.name):
        size_bytes = place.size_bytes()
    if size_bytes == ABSENT:
        return
    note = quarantine.QuarantineEntry(
        replica.container_id,
        block_id,
        0,
        size_bytes,
        replica.options.now_ms(),
        "deleted without proof",
        metadata,
    )
    if place.packed is None:
        quarantine.keep_file(volume.layout, note, place.name)
        return
    try:
        data = place.read(0, size_bytes)
    except OSError as error:
        raise_shortage(error, place.name)
        return
    quarantine.quarantine_bytes(volume.layout, note, data)


def delete_replica(
    volume: Volume, container_id: ContainerId, *, force: bool, proof: str = ""
) -> str:
    """Delete a replica. Raise `RefusedError` if it is open or not empty, unless `force` is set.

    `proof` is written to the verification log, and shows that other replicas have the data. Return
    "" if no files remain, and otherwise the reason why they remain.
    """
    with volume.index.read() as rows:
        row = rows.replica(container_id)
        has_rows = next(rows.blocks(container_id), None) is not None
    if not force:
        check_deletable(volume, container_id, row, has_rows=has_rows)

    log_delete(volume.verification, container_id, row, forced=force, proof=proof)

    def mark(rows: IndexChange) -> None:
        current = rows.replica(container_id)
        state = next_state(current.state, ReplicaEvent.DELETE_BEGAN, container_id)
        rows.put_replica(container_id, moved_on(replace(current, state=state)))

    volume.index.write(mark)
    return finish_delete(volume, container_id)


def check_deletable(
    volume: Volume, container_id: ContainerId, row: ReplicaRow, *, has_rows: bool
) -> None:
    """Raise `RefusedError` if the replica is open or not empty.

    A replica is not empty if it has block rows or files with content. The files are checked, too,
    because the index that had their rows may have been lost.
    """
    if row.state not in TREE_STATES and row.state is not ReplicaState.DELETED:
        raise RefusedError(
            Code.DELETE_ON_OPEN_CONTAINER,
            f"container {container_id} is {row.state}",
            hint="close it first, or force",
            container_id=container_id,
        )
    paths = volume.paths(container_id)
    with disk_errors(paths.chunks):
        files = paths.chunks.iterdir() if paths.chunks.is_dir() else iter(())
        leftover = next((file for file in files if not _is_empty_file(file)), None)
    if has_rows or leftover is not None:
        raise RefusedError(
            Code.DELETE_ON_NON_EMPTY_CONTAINER,
            f"container {container_id} holds {row.block_count} blocks"
            + (f" and the file {leftover.name}" if leftover is not None else ""),
            hint="force deletes the container with its data",
            container_id=container_id,
        )


def _is_empty_file(path: Path) -> bool:
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and not status.st_size


def finish_delete(volume: Volume, container_id: ContainerId) -> str:
    """Complete the delete of a replica in state DELETED, whichever step was interrupted.

    Return "" if no files remain. Otherwise, return the reason why files remain. These files have no
    row, and `purge_deleted` tries again to remove them.
    """
    root = volume.paths(container_id).root
    grave = volume.layout.deleting / str(container_id)
    with disk_errors(root):
        if root.is_dir():
            remove_tree(grave)
            move(root, grave)
    volume.index.write(lambda rows: rows.delete_container(container_id))
    try:
        remove_tree(grave)
    except OSError as error:
        return f"{grave} cannot be removed: {error.strerror}"
    return ""


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """Result of another attempt to remove the files of deleted replicas.

    The fields are the number of removed replicas, the remaining paths, and the reason of the first
    failure. Paths whose removal failed are last.
    """

    removed_count: int
    left: tuple[Path, ...]
    why: str


def purge_deleted(volume: Volume, known: Collection[Path]) -> PurgeResult:
    """Remove the remaining files of deleted replicas. Stop after a few failures.

    `known` has the paths that the previous check found. Only these are removed, because newer paths
    may belong to a running delete. Raise `VolumeFailed` if the directory cannot be listed.
    """
    with disk_errors(volume.layout.deleting):
        found = set(volume.layout.deleting.iterdir())
    old = [grave for grave in known if grave in found]
    failed: dict[Path, str] = {}
    removed_count = 0
    for grave in old[:GRAVES_MAX]:
        try:
            remove(grave)
        except OSError as error:
            failed[grave] = f"{grave} cannot be removed: {error.strerror}"
            if len(failed) == GRAVES_FAILED_MAX:
                break
        else:
            found.discard(grave)
            removed_count += 1
    waiting = [grave for grave in old if grave in found and grave not in failed]
    left = dict.fromkeys([*waiting, *sorted(found - failed.keys()), *failed])
    return PurgeResult(removed_count, tuple(left), next(iter(failed.values()), ""))


def changed_meanwhile(container_id: ContainerId) -> RefusedError:
    """Return the error for a replica that another thread has changed in the meantime.

    This happens only if the caller does not hold the lease of the container.
    """
    return RefusedError(
        Code.INVALID_CONTAINER_STATE,
        f"container {container_id} was changed concurrently",
        container_id=container_id,
    )
