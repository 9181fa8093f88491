"""In-place overwrites of bytes: a crash leaves the old ones or the new ones.

    old bytes to quarantine ─ journal entry ─ pwrite ─ fdatasync ─ read back past the cache
        ─ one LMDB commit: record, journal entry removed

At the next start a remaining entry is rolled forward if all new bytes arrived, and otherwise back
from quarantine. `agent.store.operations.batch_repair` does the same for many chunks at once, with
the same entries. Ozone overwrites in place without a journal.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from agent.errors import BlockFailed, Code, SutureError
from agent.store.files import blockfile
from agent.store.files.durable import (
    block_errors,
    raise_shortage,
    read_file,
    remove_file,
    sync_directory,
)
from agent.store.index.rows import InstallEntry, moved_on
from agent.store.index.transactions import IndexChange
from agent.store.options import StoreOptions
from agent.store.replica import quarantine
from agent.store.replica.obstacles import clear_place
from agent.store.replica.packs import unpack
from agent.store.replica.quarantine import QuarantineEntry
from agent.store.volumes.volume import Volume, check_space
from merkle.checksum import crc32c
from merkle.replica import BlockId, ChunkInfo, ContainerId

Record: TypeAlias = Callable[[IndexChange], None]


@dataclass(frozen=True, slots=True)
class _Old:
    """Former state of the file: its size, and the name of the copy of the bytes."""

    length_bytes: int
    quarantine: str


def overwrite_chunk(
    volume: Volume,
    options: StoreOptions,
    container_id: ContainerId,
    block_id: BlockId,
    chunk: ChunkInfo,
    data: bytes,
    record: Record,
    *,
    pending: bool,
    proof: str = "",
) -> None:
    """Write `data` at the chunk's place, verify it there, and `record` it in the commit that ends
    the journal entry. The entry has `proof`, of a peer with the same bytes. Raise the store's
    errors; the old bytes are then restored."""
    path = volume.paths(container_id).block_file(block_id)
    clear_place(volume, container_id, block_id, reserve_bytes=options.reserve_bytes)
    unpack(volume, container_id, block_id)
    old = _keep_old(volume, options, container_id, block_id, chunk, path, pending=pending)
    entry = InstallEntry(
        block_id=block_id,
        chunk=chunk,
        data_checksum=crc32c(data),
        old_length_bytes=old.length_bytes,
        quarantine=old.quarantine,
        pending=pending,
        proof=proof,
    )

    def begin(rows: IndexChange) -> None:
        rows.begin_work(container_id, entry)
        rows.put_replica(container_id, moved_on(rows.replica(container_id)))

    volume.index.write(begin)
    try:
        with block_errors(path):
            blockfile.overwrite(path, data, chunk.offset)
        check_arrived(path, [entry])
        finish(volume, container_id, entry, record)
    except BaseException:
        if is_open(volume, container_id, entry):
            roll_back(volume, container_id, entry)
        raise


def finish(volume: Volume, container_id: ContainerId, entry: InstallEntry, record: Record) -> None:
    """Record the new bytes and end the entry, in one commit."""

    def change(rows: IndexChange) -> None:
        record(rows)
        rows.end_work(container_id, entry)

    volume.index.write(change)
    if entry.pending and entry.quarantine:  # the client replaced its own bytes: no copy is needed
        with suppress(SutureError):  # the write is complete even if the copy stays
            quarantine.forget(volume.layout, entry.quarantine)


def is_open(volume: Volume, container_id: ContainerId, entry: InstallEntry) -> bool:
    """Return whether the index still has the entry, so that no new bytes are recorded."""
    with volume.index.read() as rows:
        return entry in (known for _, known in rows.journal(container_id))


def check_arrived(path: Path, entries: Sequence[InstallEntry]) -> None:
    """Raise `BlockFailed` if the medium does not have the bytes written to one file, and the
    store's errors if it cannot be read."""
    spans = [(entry.chunk.offset, entry.chunk.length_bytes) for entry in entries]
    for entry, data in zip(entries, blockfile.read_each_past_cache(path, spans), strict=True):
        is_here = arrived(path, entry) if data is None else _is_new(entry, data)
        if not is_here:
            raise BlockFailed(
                Code.IO_EXCEPTION,
                f"{path}: bytes at {entry.chunk.offset} read back otherwise than they were written",
                hint="check the disk and the kernel's log",
            )


def arrived(path: Path, entry: InstallEntry) -> bool:
    """Return whether the medium holds all of the new bytes."""
    with block_errors(path):
        if blockfile.size_bytes(path) < entry.chunk.end:
            return False
        data = blockfile.read_past_cache(path, entry.chunk.offset, entry.chunk.length_bytes)
    return _is_new(entry, data)


def _is_new(entry: InstallEntry, data: bytes) -> bool:
    return len(data) == entry.chunk.length_bytes and crc32c(data) == entry.data_checksum


def roll_back(volume: Volume, container_id: ContainerId, entry: InstallEntry) -> None:
    """Restore the former content of the file, as far as it was readable, and end the entry."""
    path = volume.paths(container_id).block_file(entry.block_id)
    if entry.old_length_bytes != blockfile.ABSENT:
        clear_place(volume, container_id, entry.block_id, reserve_bytes=0)
    with block_errors(path):
        if entry.old_length_bytes == blockfile.ABSENT:
            remove_file(path)
            sync_directory(path.parent)
        elif blockfile.size_bytes(path) != blockfile.ABSENT:
            if entry.quarantine:
                blockfile.overwrite(path, kept_of(volume, entry), entry.chunk.offset)
            if blockfile.size_bytes(path) > entry.old_length_bytes:
                blockfile.truncate(path, entry.old_length_bytes)
    volume.index.write(lambda rows: rows.end_work(container_id, entry))
    if entry.quarantine and not entry.is_of_batch:  # other entries may need the shared copy
        quarantine.forget(volume.layout, entry.quarantine)


def kept_of(volume: Volume, entry: InstallEntry) -> bytes:
    """Return the old bytes of an entry from its copy. Raise OSError if the copy is short, or
    repeated reads of it differ."""
    kept = quarantine.content_path(volume.layout, entry.quarantine)
    if entry.is_of_batch:
        read = partial(blockfile.read, kept, entry.kept_start, entry.kept_bytes)
    else:
        read = partial(read_file, kept, bytes_max=entry.chunk.length_bytes)
    data = blockfile.read_agreed(read, read())
    if not data or (entry.is_of_batch and len(data) < entry.kept_bytes):
        raise OSError(errno.EBADMSG, f"{len(data)} of {entry.kept_bytes} bytes", str(kept))
    return data


def _keep_old(
    volume: Volume,
    options: StoreOptions,
    container_id: ContainerId,
    block_id: BlockId,
    chunk: ChunkInfo,
    path: Path,
    *,
    pending: bool,
) -> _Old:
    with block_errors(path):
        size = blockfile.size_bytes(path)
    blockfile.check_reached(path, max(size, 0), chunk.offset)
    kept_bytes = max(min(size, chunk.end) - chunk.offset, 0)
    added_bytes = max(chunk.end - max(size, 0), 0)
    check_space(volume, kept_bytes + added_bytes, reserve_bytes=options.reserve_bytes)
    if size <= chunk.offset:
        return _Old(size, "")
    read = partial(blockfile.read_past_cache, path, chunk.offset, chunk.length_bytes)
    try:
        old = blockfile.read_agreed(read, read())
    except OSError as error:  # unreadable, which is why they are being replaced
        raise_shortage(error, path)
        return _Old(size, "")
    if not old:
        return _Old(size, "")
    note = QuarantineEntry(
        container_id=container_id,
        block_id=block_id,
        offset=chunk.offset,
        length_bytes=len(old),
        at_ms=options.now_ms(),
        why="rewritten by its client" if pending else "replaced by a repair",
    )
    return _Old(size, quarantine.quarantine_bytes(volume.layout, note, old))
