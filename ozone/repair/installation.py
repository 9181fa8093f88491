"""Writes a chunk to a volume of Ozone. After a crash, the file has either the old or the new bytes.

The steps are: copy the old bytes to quarantine, write a journal entry, pwrite, fdatasync, read the
bytes back past the page cache, remove the journal entry.

The steps are the same as in `agent.store.operations.overwrite`, but the journal and the replaced
bytes are in the state directory. Files keep their owner and mode. A new file gets those of another
file in the directory, so that the datanode's user can access it. Data that matches its checksums is
never overwritten.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from agent.store.files import blockfile, extents
from agent.store.files.layout import VolumeLayout
from agent.store.operations.overwrite import REPAIRED, arrived, check_arrived, keep_old, kept_of
from agent.store.replica import quarantine
from agent.store.replica.quarantine import QuarantineEntry
from merkle.checksum import crc32c
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from ozone.disk.descriptor import DESCRIPTOR_BYTES_MAX
from ozone.disk.layout import ContainerPaths
from ozone.repair.journal import Journal, RepairJournalEntry
from ozone.repair.windows import fits_twice
from suture.errors import BlockFailed, Code, RefusedError, UnavailableError
from suture.runtime.durable import (
    block_errors,
    disk_errors,
    make_directories,
    move,
    open_new,
    read_file,
    remove_file,
    stage,
    sync_directory,
)

NEW_PREFIX: Final = ".suture-new-"  # prefix of a file before its rename; Ozone reads only *.block
PLAIN_MODE: Final = 0o644  # mode of a block file if there is no other block file


@dataclass(frozen=True, slots=True)
class RepairQuarantine(VolumeLayout):
    """Paths of the quarantine of replaced data, which is in the state directory."""

    @property
    def quarantine(self) -> Path:
        """Path of the quarantine directory."""
        return self.volume / "quarantine"


class Installer:
    """Writes chunks of replicas on one volume. Only one thread may use it."""

    def __init__(self, state: Path, now_ms: Callable[[], int], check: Callable[[], None]) -> None:
        """Prepare to write chunks.

        `state` is the state directory for this volume. `check` raises an error if writes are not
        allowed now. Raise SutureError if the directories cannot be created.
        """
        self._layout = RepairQuarantine(state, "")
        self._now_ms = now_ms
        self._check = check
        journal = state / "journal"
        with disk_errors(state):
            for directory in (journal, self._layout.quarantine):
                make_directories(directory, below=state.parent)
        self._journal = Journal(journal)
        self.remarks: list[str] = []  # problems of the recovery

    @property
    def quarantine(self) -> Path:
        """Path of the quarantine directory, which has the replaced data."""
        return self._layout.quarantine

    def unfinished(self) -> list[RepairJournalEntry]:
        """Return the journal entries of the writes that an interrupted repair left.

        These are the unfinished writes to this volume.
        """
        return list(self._journal.entries())

    def recover(self, container_id: ContainerId | None = None) -> int:
        """Finish the unfinished writes in the journal. Return their number.

        Keep the new bytes of a write if they are complete, and otherwise restore the old bytes. If
        neither the disk nor the quarantine has the bytes, remove the journal entry. The next read
        then reports the damaged chunk. If the bytes of an entry cannot be written, rename the entry
        and add a remark.

        Raise UnavailableError if an entry of `container_id` must be retried later. If
        `container_id` is None, this applies to every entry. Other entries get a remark.
        """
        entries = self.unfinished()
        for entry in entries:
            self._check()
            try:
                self._finish_entry(entry)
            except UnavailableError as error:
                if container_id in {None, entry.container_id}:
                    raise
                self.remarks.append(f"not ended yet: {error}")
            except (BlockFailed, RefusedError) as error:
                aside = self._journal.set_aside(entry)
                self.remarks.append(f"neither old nor new bytes: {error}; {aside} says what was")
        return len(entries)

    def install(
        self, paths: ContainerPaths, block_id: BlockId, chunk: ChunkInfo, data: bytes
    ) -> bool:
        """Write the bytes of a chunk.

        Return False, without writing, if the bytes on disk are correct already. Raise
        RefusedError(CHECKSUM_MISMATCH) if the new bytes do not match the row, and
        RefusedError(CHUNK_GAP) if the file ends before the chunk. Raise
        UnavailableError(DISK_OUT_OF_SPACE) if there is no space, and BlockFailed if the write
        fails. After an error, the old bytes are restored.
        """
        self._check()
        if not fits_twice(chunk, data):
            raise RefusedError(
                Code.CHECKSUM_MISMATCH,
                f"block {block_id}, chunk at {chunk.offset}: the data does not match the local row",
            )
        path = paths.chunks / f"{block_id}.block"
        make_home(paths)
        with block_errors(path):
            if chunk.checksum_type is not ChecksumType.NONE and _medium_matches(path, chunk):
                return False
            size_bytes = _regular_size(path)
            blockfile.check_reached(path, max(size_bytes, 0), chunk.offset)
            self._check_room(path, size_bytes, chunk)
            own_name(path, size_bytes)
        note = QuarantineEntry(
            container_id=paths.container_id,
            block_id=block_id,
            offset=chunk.offset,
            length_bytes=chunk.length_bytes,
            at_ms=self._now_ms(),
            why=REPAIRED,
        )
        entry = RepairJournalEntry(
            container_id=paths.container_id,
            path=path.absolute(),
            block_id=block_id,
            chunk=chunk,
            data_checksum=crc32c(data),
            old_length_bytes=size_bytes,
            quarantine=keep_old(self._layout, note, path, size_bytes),
            pending=False,
        )
        self._journal.begin(entry)
        try:
            with block_errors(path):
                if size_bytes == blockfile.ABSENT:
                    make_empty(path)
                blockfile.overwrite(path, data, chunk.offset)
            check_arrived(path, [entry])
            self._journal.end(entry)
        except BaseException:
            if self._journal.is_open(entry):
                self._roll_back(entry)
            raise
        return True

    def replace_descriptor(self, paths: ContainerPaths, data: bytes) -> None:
        """Replace the descriptor atomically, and store the old descriptor in quarantine.

        Raise SutureError if this fails.
        """
        self._check()
        path = paths.descriptor
        with disk_errors(path):
            old = read_file(path, bytes_max=DESCRIPTOR_BYTES_MAX)
        note = QuarantineEntry(
            paths.container_id, BlockId(0), 0, len(old), self._now_ms(), "its descriptor"
        )
        quarantine.quarantine_bytes(self._layout, note, old)
        with disk_errors(path):
            staged = stage(path, data)
            try:
                copy_owner_and_mode(staged.temporary, path.lstat())
                staged.publish()
            finally:
                staged.discard()

    def _check_room(self, path: Path, size_bytes: int, chunk: ChunkInfo) -> None:
        """Raise UnavailableError if there is too little space for the write and the quarantine.

        Raise OSError if the free space cannot be determined.
        """
        added = max(chunk.end - max(size_bytes, 0), 0)
        if size_bytes != blockfile.ABSENT and path.lstat().st_nlink > 1:
            added += size_bytes
        kept = max(min(size_bytes, chunk.end) - chunk.offset, 0)
        for directory, needed_bytes in ((path.parent, added), (self._layout.quarantine, kept)):
            facts = os.statvfs(directory)
            free_bytes = facts.f_bavail * facts.f_frsize
            if needed_bytes > free_bytes:
                raise UnavailableError(
                    Code.DISK_OUT_OF_SPACE,
                    f"{directory}: {needed_bytes} bytes are needed, {free_bytes} are free",
                    hint="free space, or choose another directory with --state-dir",
                )

    def _finish_entry(self, entry: RepairJournalEntry) -> None:
        _remove_new(entry.path.parent)
        try:
            has_arrived = arrived(entry.path, entry)
        except BlockFailed as error:  # the block file was perhaps unreadable before, too
            self.remarks.append(str(error))
            self._roll_back(entry, forgets=False)
            return
        if has_arrived:
            self._journal.end(entry)
        else:
            self._roll_back(entry)

    def _quarantined_bytes(self, entry: RepairJournalEntry) -> bytes:
        """Return the old bytes of an entry from the quarantine.

        Return b"" if the old bytes could not be read at that time, or are no longer in quarantine.
        """
        if not entry.quarantine:
            return b""
        path = quarantine.content_path(self._layout, entry.quarantine)
        with block_errors(path):
            try:
                return kept_of(self._layout, entry)
            except FileNotFoundError:
                self.remarks.append(f"{entry.path} is left as it is: {path} is gone")
                return b""

    def _roll_back(self, entry: RepairJournalEntry, *, forgets: bool = True) -> None:
        """Restore the old bytes of the file, if they are known, and remove the journal entry.

        If `forgets` is True, also remove the copy of the bytes from the quarantine.
        """
        path, old = entry.path, self._quarantined_bytes(entry)
        with block_errors(path):
            size_bytes = blockfile.size_bytes(path)
            if entry.old_length_bytes == blockfile.ABSENT:
                if 0 <= size_bytes <= entry.chunk.end:  # no later write has extended the file
                    remove_file(path)
                    sync_directory(path.parent)
            elif size_bytes != blockfile.ABSENT:
                if old and size_bytes >= entry.chunk.offset:
                    blockfile.overwrite(path, old, entry.chunk.offset)
                if entry.old_length_bytes < size_bytes <= entry.chunk.end:
                    blockfile.truncate(path, entry.old_length_bytes)
        self._journal.end(entry)
        if entry.quarantine and forgets:
            quarantine.forget(self._layout, entry.quarantine)


def _medium_matches(path: Path, chunk: ChunkInfo) -> bool:
    """Return whether the bytes of the chunk on disk match its row."""
    try:
        return fits_twice(chunk, blockfile.read_past_cache(path, chunk.offset, chunk.length_bytes))
    except OSError:
        return False


def _regular_size(path: Path) -> int:
    """Return the size of a block file in bytes, or ABSENT if there is no file.

    Raise BlockFailed if another kind of object is at the path, and OSError if the size is unknown.
    """
    size_bytes = blockfile.size_bytes(path)
    if size_bytes == blockfile.ABSENT and os.path.lexists(path):
        raise BlockFailed(
            Code.IO_EXCEPTION,
            f"{path} is not a regular file",
            hint="move it away; the block is then created again",
        )
    return size_bytes


def make_home(paths: ContainerPaths) -> None:
    """Create the directory of block files if it is missing.

    Raise SutureError if this fails, or if a symbolic link is at its path.
    """
    with disk_errors(paths.chunks):
        if paths.chunks.is_symlink():
            raise BlockFailed(Code.IO_EXCEPTION, f"{paths.chunks} is a link")
        if not paths.chunks.is_dir():
            with making(paths.chunks, paths.root.lstat()) as temporary:
                temporary.mkdir()


def make_empty(path: Path) -> None:
    """Create an empty block file with the owner and mode of the other block files.

    Raise OSError if this fails.
    """
    with making(path, _like_neighbours(path.parent)) as temporary:
        os.close(open_new(temporary))


def own_name(path: Path, size_bytes: int) -> None:
    """Replace a block file by a copy if it has other hard links.

    A later write to the file then does not change the data under the other links. Raise OSError if
    this fails.
    """
    if size_bytes == blockfile.ABSENT or path.lstat().st_nlink == 1:
        return
    with making(path, path.lstat()) as temporary, blockfile.opened(path, os.O_RDONLY) as fd:
        extents.copy(fd, temporary, start=0, end=size_bytes)


@contextmanager
def making(path: Path, like: os.stat_result) -> Iterator[Path]:
    """Create a file or directory atomically.

    Yield a temporary path, at which the `with` block creates it. Then set its owner and mode as in
    `like`, and rename it to `path`. Raise OSError if this fails.
    """
    temporary = path.with_name(f"{NEW_PREFIX}{path.name}")
    try:
        yield temporary
        copy_owner_and_mode(temporary, like)
        move(temporary, path)
    finally:
        with suppress(OSError):
            if temporary.is_dir():
                temporary.rmdir()
            else:
                temporary.unlink(missing_ok=True)


def copy_owner_and_mode(path: Path, like: os.stat_result) -> None:
    """Set the owner and mode of `path` to those in `like`. Raise OSError if this fails."""
    facts = path.lstat()
    if (facts.st_uid, facts.st_gid) != (like.st_uid, like.st_gid):
        os.chown(path, like.st_uid, like.st_gid, follow_symlinks=False)
    path.chmod(stat.S_IMODE(like.st_mode))


def _like_neighbours(chunks: Path) -> os.stat_result:
    """Return the owner and mode for a new block file.

    These are those of another block file or, if there is none, the owner of the directory and a
    default mode.
    """
    with os.scandir(chunks) as entries:
        for entry in entries:
            if entry.name.endswith(".block") and entry.is_file(follow_symlinks=False):
                return entry.stat(follow_symlinks=False)
    facts = list(chunks.lstat())
    facts[stat.ST_MODE] = stat.S_IFREG | PLAIN_MODE
    return os.stat_result(facts)


def _remove_new(chunks: Path) -> None:
    """Remove the temporary files that an interrupted repair left in a directory of block files."""
    with block_errors(chunks):
        for path in chunks.glob(f"{NEW_PREFIX}*"):
            path.unlink()


def clean(paths: ContainerPaths) -> None:
    """Remove Suture's temporary files from a replica. Raise SutureError if this fails."""
    if paths.chunks.is_dir():
        _remove_new(paths.chunks)
    with disk_errors(paths.root):
        empty = paths.chunks.with_name(f"{NEW_PREFIX}{paths.chunks.name}")
        if empty.is_dir():
            empty.rmdir()
