"""In-place overwrites of bytes. After a crash, the file has either all old or all new bytes.

1. Copy the old bytes to quarantine.
2. Write the journal entries.
3. Overwrite, with one fdatasync per file, and sync the directory. If many files change, sync the
   file system instead.
4. Read the new bytes back past the page cache, and verify them.
5. Record the new bytes and remove the journal entries, in one LMDB commit.

If a start finds a journal entry and all its new bytes are on the disk, it completes the overwrite.
Otherwise it restores the old bytes from quarantine.

Ozone overwrites in place without a journal. `ozone.repair.installation` repairs Ozone volumes with
the same steps, and keeps its journal in files.
"""

import errno
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from agent.store.files import blockfile
from agent.store.files.layout import VolumeLayout
from agent.store.index.rows import InstallEntry, moved_on
from agent.store.index.transactions import IndexChange
from agent.store.replica import quarantine
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica.packs import unpack
from agent.store.replica.path_conflicts import clear_place
from agent.store.replica.quarantine import QuarantineEntry
from agent.store.volumes.volume import check_space
from merkle.checksum import long_crc32c
from merkle.replica import BlockId, ChunkInfo
from suture.errors import BlockFailed, Code, SutureError
from suture.runtime.durable import (
    block_errors,
    raise_shortage,
    read_file,
    remove_file,
    sync_all,
    sync_directory,
)

FILES_SYNCED_MAX: Final = 16  # for more files, one sync of the file system is cheaper
REPAIRED: Final = "replaced by a repair"
REWRITTEN: Final = "rewritten by its client"

Record: TypeAlias = Callable[[IndexChange], None]


def overwrite_chunk(
    replica: ReplicaHandle,
    block_id: BlockId,
    chunk: ChunkInfo,
    data: bytes,
    record: Record,
    *,
    pending: bool,
    proof: str = "",
) -> None:
    """Write `data` at the offset of the chunk, with the steps of `overwrite_chunks`.

    If another object is at the path of the file, move it away first. Give a packed block a file of
    its own. `pending` is True if a client rewrites uncommitted bytes, and False for a repair. The
    journal entry contains `proof`, which shows that a peer has the same bytes.
    """
    volume, options = replica.volume, replica.options
    path = replica.paths.block_file(block_id)
    clear_place(replica, block_id, reserve_bytes=options.reserve_bytes)
    unpack(volume, replica.container_id, block_id)
    with block_errors(path):
        size_bytes = blockfile.size_bytes(path)
    blockfile.check_reached(path, max(size_bytes, 0), chunk.offset)
    kept_bytes = max(min(size_bytes, chunk.end) - chunk.offset, 0)
    added_bytes = max(chunk.end - max(size_bytes, 0), 0)
    check_space(volume, kept_bytes + added_bytes, reserve_bytes=options.reserve_bytes)
    note = QuarantineEntry(
        container_id=replica.container_id,
        block_id=block_id,
        offset=chunk.offset,
        length_bytes=chunk.length_bytes,
        at_ms=options.now_ms(),
        why=REWRITTEN if pending else REPAIRED,
    )
    entry = InstallEntry(
        block_id=block_id,
        chunk=chunk,
        data_checksum=long_crc32c()(data),
        old_length_bytes=size_bytes,
        quarantine=keep_old(volume.layout, note, path, size_bytes),
        pending=pending,
        proof=proof,
    )
    overwrite_chunks(replica, [entry], [data], record)


def overwrite_chunks(
    replica: ReplicaHandle, entries: Sequence[InstallEntry], data: Sequence[bytes], record: Record
) -> None:
    """Write the new bytes of all entries, and verify them on the disk.

    Call `record` in the commit that removes the journal entries. Raise SutureError if a step fails.
    The old bytes are then restored. If this fails, too, the journal keeps the entries, and the next
    start restores the bytes.
    """

    container_id = replica.container_id

    def begin(rows: IndexChange) -> None:
        for entry in entries:
            rows.begin_work(container_id, entry)
        rows.put_replica(container_id, moved_on(rows.replica(container_id)))

    replica.volume.index.write(begin)
    try:
        _write(replica, entries, data)
        finish(replica, entries, record)
    except BaseException:
        _roll_back(replica, entries)
        raise


def _write(replica: ReplicaHandle, entries: Sequence[InstallEntry], data: Sequence[bytes]) -> None:
    """Write all chunks, sync them, and verify them on the disk.

    Raise SutureError if a step fails.
    """
    paths = replica.paths
    pieces: dict[BlockId, list[tuple[int, bytes]]] = defaultdict(list)
    written: dict[BlockId, list[InstallEntry]] = defaultdict(list)
    for entry, piece in zip(entries, data, strict=True):
        pieces[entry.block_id].append((entry.chunk.offset, piece))
        written[entry.block_id].append(entry)
    is_synced = len(pieces) <= FILES_SYNCED_MAX
    for block_id, parts in pieces.items():
        path = paths.block_file(block_id)
        with block_errors(path):
            blockfile.overwrite_pieces(path, parts, is_synced=is_synced)
    with block_errors(paths.chunks):
        (sync_directory if is_synced else sync_all)(paths.chunks)
    for block_id, those in written.items():
        check_arrived(paths.block_file(block_id), those)


def finish(replica: ReplicaHandle, entries: Sequence[InstallEntry], record: Record) -> None:
    """Record the new bytes and remove the journal entries, in one commit."""

    def change(rows: IndexChange) -> None:
        record(rows)
        for entry in entries:
            rows.end_work(replica.container_id, entry)

    replica.volume.index.write(change)
    for entry in entries:
        if entry.pending and entry.quarantine:  # old bytes of a client: not needed
            with suppress(SutureError):  # the write is complete even if the copy remains
                quarantine.forget(replica.volume.layout, entry.quarantine)


def _roll_back(replica: ReplicaHandle, entries: Sequence[InstallEntry]) -> None:
    """Restore the old bytes of all entries that are still in the journal."""
    for entry in entries:
        if is_open(replica, entry):
            roll_back(replica, entry)
    for name in {entry.quarantine for entry in entries if entry.is_of_batch} - {""}:
        with suppress(SutureError):
            quarantine.forget(replica.volume.layout, name)


def is_open(replica: ReplicaHandle, entry: InstallEntry) -> bool:
    """Return whether the journal still has the entry.

    If it has, the new bytes are not recorded yet.
    """
    with replica.volume.index.read() as rows:
        return entry in (known for _, known in rows.journal(replica.container_id))


def check_arrived(path: Path, entries: Sequence[InstallEntry]) -> None:
    """Raise `BlockFailed` if the disk does not return the new bytes of these entries of one file.

    Raise SutureError if the file cannot be read.
    """
    spans = [(entry.chunk.offset, entry.chunk.length_bytes) for entry in entries]
    found = blockfile.of_each_past_cache(path, spans, lambda data: (len(data), long_crc32c()(data)))
    for entry, here in zip(entries, found, strict=True):
        new = entry.chunk.length_bytes, entry.data_checksum
        if not (arrived(path, entry) if here is None else here == new):
            raise BlockFailed(
                Code.IO_EXCEPTION,
                f"{path}: bytes at {entry.chunk.offset} read back differ from the bytes written",
                hint="check the disk and the kernel log",
            )


def arrived(path: Path, entry: InstallEntry) -> bool:
    """Return whether the disk has all new bytes of the entry."""
    with block_errors(path):
        if blockfile.size_bytes(path) < entry.chunk.end:
            return False
        data = blockfile.read_past_cache(path, entry.chunk.offset, entry.chunk.length_bytes)
    return (len(data), long_crc32c()(data)) == (entry.chunk.length_bytes, entry.data_checksum)


def roll_back(replica: ReplicaHandle, entry: InstallEntry) -> None:
    """Restore the old content of the file, and remove the journal entry.

    Bytes that could not be read before the overwrite are not restored.
    """
    volume = replica.volume
    path = replica.paths.block_file(entry.block_id)
    if entry.old_length_bytes != blockfile.ABSENT:
        clear_place(replica, entry.block_id, reserve_bytes=0)
    with block_errors(path):
        if entry.old_length_bytes == blockfile.ABSENT:
            remove_file(path)
            sync_directory(path.parent)
        elif blockfile.size_bytes(path) != blockfile.ABSENT:
            if entry.quarantine:
                blockfile.overwrite(path, kept_of(volume.layout, entry), entry.chunk.offset)
            if blockfile.size_bytes(path) > entry.old_length_bytes:
                blockfile.truncate(path, entry.old_length_bytes)
    volume.index.write(lambda rows: rows.end_work(replica.container_id, entry))
    if entry.quarantine and not entry.is_of_batch:  # other entries may need the shared copy
        quarantine.forget(volume.layout, entry.quarantine)


def keep_old(layout: VolumeLayout, note: QuarantineEntry, path: Path, size_bytes: int) -> str:
    """Copy the bytes of a file in the range of `note` to quarantine. Return the name of the copy.

    Return "" if the file ends before the range, if the range cannot be read, or if repeated reads
    differ. Raise SutureError if the copy cannot be written.
    """
    if size_bytes <= note.offset:
        return ""
    read = partial(blockfile.read_past_cache, path, note.offset, note.length_bytes)
    try:
        old = blockfile.read_agreed(read, read())
    except OSError as error:
        raise_shortage(error, path)
        return ""
    if not old:
        return ""
    return quarantine.quarantine_bytes(layout, replace(note, length_bytes=len(old)), old)


def kept_of(layout: VolumeLayout, entry: InstallEntry) -> bytes:
    """Return the old bytes of an entry from their copy in quarantine.

    Raise OSError if the copy is incomplete, or if repeated reads of it differ.
    """
    kept = quarantine.content_path(layout, entry.quarantine)
    if entry.is_of_batch:
        read = partial(blockfile.read, kept, entry.kept_start, entry.kept_bytes)
    else:
        read = partial(read_file, kept, bytes_max=entry.chunk.length_bytes)
    data = blockfile.read_agreed(read, read())
    if not data:
        raise OSError(errno.EBADMSG, "each read returns different bytes", str(kept))
    if entry.is_of_batch and len(data) < entry.kept_bytes:
        raise OSError(errno.EBADMSG, f"{len(data)} of {entry.kept_bytes} bytes", str(kept))
    return data
