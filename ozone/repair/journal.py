"""The journal of a repair: durable entries for the writes in progress.

The journal has one file for each chunk that is being written. It is in the state directory, not on
Ozone's volume. The file has the old length of the block file, the name of the copy of the old bytes
in quarantine, and the checksum of the new bytes. After a crash, the recovery can therefore detect
if the new bytes are complete, and otherwise restore the old bytes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.store.index.rows import InstallEntry
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ContainerId
from suture.errors import Code, RefusedError
from suture.runtime.durable import (
    disk_errors,
    move,
    read_file,
    remove_file,
    replace_file,
    sync_directory,
)

ENTRY_BYTES_MAX: Final = 8 * 1024**2  # 32 MiB in windows of 512 bytes, each with a SHA-256 in hex
SUFFIX: Final = ".json"
ASIDE: Final = ".failed"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairJournalEntry(InstallEntry):
    """Journal entry: a chunk is being written to the block file at `path`."""

    container_id: ContainerId
    path: Path

    def encode(self) -> bytes:
        """Return the content of the file with this entry."""
        chunk = self.chunk
        return json.dumps(
            {
                "version": VERSION,
                "container_id": self.container_id,
                "block_id": self.block_id,
                "path": str(self.path),
                "offset": chunk.offset,
                "length_bytes": chunk.length_bytes,
                "checksum_type": int(chunk.checksum_type),
                "bytes_per_checksum": chunk.bytes_per_checksum,
                "window_checksums": chunk.window_checksums.hex(),
                "data_checksum": self.data_checksum,
                "old_length_bytes": self.old_length_bytes,
                "kept": self.quarantine,
            }
        ).encode()


def _check_version(version: object) -> None:
    if version != VERSION:
        raise ValueError(f"version {version}")


def decode_entry(data: bytes, name: str) -> RepairJournalEntry:
    """Return the journal entry in a file. `name` is the name of the file, for errors.

    Raise RefusedError if it is invalid. The recovery then changes nothing.
    """
    try:
        fields: dict[str, Any] = json.loads(data)
        _check_version(fields["version"])
        return RepairJournalEntry(
            container_id=ContainerId(int(fields["container_id"])),
            block_id=BlockId(int(fields["block_id"])),
            path=Path(fields["path"]),
            chunk=ChunkInfo(
                int(fields["offset"]),
                int(fields["length_bytes"]),
                ChecksumType(fields["checksum_type"]),
                int(fields["bytes_per_checksum"]),
                bytes.fromhex(fields["window_checksums"]),
            ),
            data_checksum=int(fields["data_checksum"]),
            old_length_bytes=int(fields["old_length_bytes"]),
            quarantine=str(fields["kept"]),
            pending=False,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot read {name} as a journal of this version: {error}",
            hint="finish the interrupted repair with the version that started it",
        ) from error


class Journal:
    """The journal entries of one volume. Only one repair at a time may use it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, entry: RepairJournalEntry) -> None:
        """Store a journal entry durably. Raise SutureError if the write fails."""
        replace_file(self._path(entry), entry.encode())

    def end(self, entry: RepairJournalEntry) -> None:
        """Remove a journal entry durably. Raise SutureError if this fails."""
        with disk_errors(self._directory):
            remove_file(self._path(entry))
            sync_directory(self._directory)

    def set_aside(self, entry: RepairJournalEntry) -> Path:
        """Rename an entry whose work cannot be completed. Return the new path.

        Later repairs ignore it, and an operator can inspect it. Raise SutureError if the rename
        fails.
        """
        path = self._path(entry)
        aside = path.with_name(f"{path.name}{ASIDE}")
        with disk_errors(path):
            move(path, aside)
        return aside

    def is_open(self, entry: RepairJournalEntry) -> bool:
        """Return whether an entry is still in the journal."""
        return self._path(entry).exists()

    def entries(self) -> Iterator[RepairJournalEntry]:
        """Yield all entries in the journal.

        Raise SutureError if an entry cannot be read or is invalid.
        """
        with disk_errors(self._directory):
            paths = sorted(self._directory.glob(f"*{SUFFIX}"))
        for path in paths:
            with disk_errors(path):
                data = read_file(path, bytes_max=ENTRY_BYTES_MAX)
            yield decode_entry(data, str(path))

    def _path(self, entry: RepairJournalEntry) -> Path:
        name = f"{entry.container_id}-{entry.block_id}-{entry.chunk.offset}{SUFFIX}"
        return self._directory / name
