"""Quarantine: bytes that were removed from a replica, kept for some time in case they are needed.

    quarantine/<container>-<block>-<offset>-<ms>.bytes     the removed bytes
    quarantine/<container>-<block>-<offset>-<ms>.aside     a foreign object, moved unchanged
    quarantine/<container>-<block>-<offset>-<ms>.json      origin, time and reason

A batch of repairs saves all bytes that it overwrites in one .bytes file, whose name has block 0 and
offset 0. The .json file lists the parts. A copy is durable before the original is changed. Copies
are removed only because of their age.
"""

import json
import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from agent.store.files import blockfile, extents
from agent.store.files.layout import VolumeLayout
from merkle.replica import CHUNK_BYTES_MAX, BlockId, ContainerId
from suture.runtime.durable import (
    TEMPORARY_SUFFIX,
    block_errors,
    disk_errors,
    move,
    read_file,
    remove_file,
    remove_tree,
    replace_file,
)

BYTES_SUFFIX: Final = ".bytes"
ASIDE_SUFFIX: Final = ".aside"
NOTE_SUFFIX: Final = ".json"
NO_BLOCK: Final = BlockId(0)  # for a file with bytes of several blocks; ids begin at 1
BATCH_OFFSET: Final = 0
FORMER_MAX: Final = 4  # quarantined files that a scan compares with a damaged chunk
NOTE_BYTES_MAX: Final = 1024**2
_NAME: Final = re.compile(r"\d+-\d+-\d+-(\d+)(?:-\d+)?")


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """Origin, time and reason of a quarantined file."""

    container_id: ContainerId
    block_id: BlockId
    offset: int
    length_bytes: int
    at_ms: int
    why: str
    metadata: tuple[tuple[str, str], ...] = ()  # client metadata, if the file is a complete block


class QuarantinedRange(NamedTuple):
    """A part of the quarantine file of a batch.

    The part has the bytes `[offset, offset + length_bytes)` of a block. It begins at byte `start`
    of the file.
    """

    block_id: BlockId
    offset: int
    length_bytes: int
    start: int


Names: TypeAlias = defaultdict[tuple[BlockId, int], list[str]]
Parts: TypeAlias = defaultdict[tuple[BlockId, int], list[tuple[Path, QuarantinedRange]]]


def quarantine_bytes(layout: VolumeLayout, note: QuarantineEntry, data: bytes) -> str:
    """Store a durable copy of `data` in quarantine. Return the name of the copy.

    Raise SutureError if it cannot be written.
    """
    name = free_name(layout, note)
    _write_note(layout, name, note)
    replace_file(layout.quarantine / (name + BYTES_SUFFIX), data)
    return name


Part: TypeAlias = tuple[BlockId, int, bytes]
"""Block id, offset in the block, and bytes."""


def quarantine_ranges(
    layout: VolumeLayout, container_id: ContainerId, parts: Sequence[Part], *, at_ms: int, why: str
) -> tuple[str, list[int]]:
    """Store bytes of several blocks in one durable copy.

    Return the name of the copy, and the offset in bytes of each part in it. Raise SutureError if
    the copy cannot be written.
    """
    starts, end = [], 0
    for _, _, data in parts:
        starts.append(end)
        end += len(data)
    note = QuarantineEntry(container_id, NO_BLOCK, BATCH_OFFSET, end, at_ms, why)
    name = free_name(layout, note)
    places = [
        (block_id, offset, len(data), start)
        for (block_id, offset, data), start in zip(parts, starts, strict=True)
    ]
    content = json.dumps({**asdict(note), "parts": places}).encode()
    replace_file(layout.quarantine / (name + NOTE_SUFFIX), content)
    pieces = [data for _, _, data in parts]
    _write_content(layout, name, lambda temporary: blockfile.write_new(temporary, pieces))
    return name, starts


class QuarantinedPieces:
    """Reads the quarantined bytes of one container.

    The directory is listed once, at the first request.
    """

    def __init__(self, folder: Path, container_id: ContainerId) -> None:
        self._folder = folder
        self._prefix = f"{container_id}-"

    def of(self, block_id: BlockId, offset: int) -> Iterator[bytes]:
        """Yield the quarantined versions of the bytes of a block at `offset`.

        First yield the versions in files of their own, then those in batches, each with the newest
        first and at most FORMER_MAX files. Raise OSError if a read fails.
        """
        own, shared = self._places
        for name in sorted(own.get((block_id, offset), ()), reverse=True)[:FORMER_MAX]:
            yield read_file(self._folder / name, bytes_max=CHUNK_BYTES_MAX)
        for path, part in shared.get((block_id, offset), ()):
            yield blockfile.read(path, part.start, part.length_bytes)

    @cached_property
    def _places(self) -> tuple[Names, Parts]:
        own: Names = defaultdict(list)
        notes = []
        for path in self._folder.iterdir():
            name, stem, suffix = path.name, path.stem, path.suffix
            if not stem.startswith(self._prefix) or not _NAME.fullmatch(stem):
                continue
            block_id, offset = map(int, stem.split("-")[1:3])
            if suffix == BYTES_SUFFIX:
                own[BlockId(block_id), offset].append(name)
            elif suffix == NOTE_SUFFIX and (block_id, offset) == (NO_BLOCK, BATCH_OFFSET):
                notes.append(name)
        shared: Parts = defaultdict(list)
        for path in (self._folder / name for name in sorted(notes, reverse=True)[:FORMER_MAX]):
            copy = path.with_suffix(BYTES_SUFFIX)
            with suppress(OSError):  # use the other files if one is unreadable
                for part in parts_of(path):
                    if isinstance(part.block_id, int) and isinstance(part.offset, int):
                        shared[part.block_id, part.offset].append((copy, part))
        return own, shared


def parts_of(note_path: Path) -> list[QuarantinedRange]:
    """Return the parts in the quarantine file of a batch, from its note.

    Return an empty list if the note is damaged or does not belong to a batch. Raise OSError if the
    note cannot be read.
    """
    try:
        told = json.loads(read_file(note_path, bytes_max=NOTE_BYTES_MAX))
        return [QuarantinedRange(*part) for part in told.get("parts", ())]
    except (ValueError, TypeError, AttributeError):
        return []


def keep_tail(layout: VolumeLayout, note: QuarantineEntry, path: Path) -> str:
    """Store a durable copy of the end of a block file, with its holes.

    Return the name of the copy.
    """
    name = free_name(layout, note)
    _write_note(layout, name, note)

    def write(temporary: Path) -> None:
        with blockfile.opened(path, os.O_RDONLY) as fd:
            end = note.offset + note.length_bytes
            extents.copy(fd, temporary, start=note.offset, end=end)

    _write_content(layout, name, write)
    return name


def _write_content(layout: VolumeLayout, name: str, write: Callable[[Path], None]) -> None:
    """Create the .bytes file of a copy.

    `write` writes the content durably to a temporary file, which is then renamed.
    """
    target = content_path(layout, name)
    temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
    with block_errors(target):
        try:
            write(temporary)
            move(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


def keep_file(layout: VolumeLayout, note: QuarantineEntry, path: Path) -> str:
    """Move a file to quarantine. Return its name there."""
    name = free_name(layout, note)
    _write_note(layout, name, note)
    with block_errors(path):
        move(path, content_path(layout, name))
    return name


def quarantine_foreign(layout: VolumeLayout, note: QuarantineEntry, path: Path) -> str:
    """Move an object of any kind to quarantine. Return its name there.

    Raise OSError if the move fails. Nothing is changed in this case.
    """
    name = free_name(layout, note)
    _write_note(layout, name, note)
    try:
        move(path, layout.quarantine / (name + ASIDE_SUFFIX))
    except OSError:
        remove_file(layout.quarantine / (name + NOTE_SUFFIX))
        raise
    return name


def _write_note(layout: VolumeLayout, name: str, note: QuarantineEntry) -> None:
    content = json.dumps(asdict(note), indent=1).encode()
    replace_file(layout.quarantine / (name + NOTE_SUFFIX), content)


def free_name(layout: VolumeLayout, note: QuarantineEntry) -> str:
    """Return an unused name for a copy.

    The name has a number at its end if the same range was quarantined in the same millisecond.
    """
    name = f"{note.container_id}-{note.block_id}-{note.offset}-{note.at_ms}"
    number = 0
    while (layout.quarantine / (name + NOTE_SUFFIX)).exists():
        number += 1
        name = f"{note.container_id}-{note.block_id}-{note.offset}-{note.at_ms}-{number}"
    return name


def content_path(layout: VolumeLayout, name: str) -> Path:
    """Return the path of the file with the bytes of a quarantined copy."""
    return layout.quarantine / (name + BYTES_SUFFIX)


def forget(layout: VolumeLayout, name: str) -> None:
    """Remove a copy from quarantine, with the note about its origin."""
    with disk_errors(layout.quarantine):
        remove_file(content_path(layout, name))
        remove_file(layout.quarantine / (name + NOTE_SUFFIX))


def remove_cut_off(layout: VolumeLayout) -> int:
    """Remove the incomplete copies that a crash left in quarantine. Return their number.

    Their original files are unchanged, because a copy is completed before its original is changed.
    This is called only at the start, before any copy is written.
    """
    with disk_errors(layout.quarantine):
        cut_off = [path for path in layout.quarantine.iterdir() if is_cut_off(path.name)]
        for path in cut_off:
            remove_file(path)
    return len(cut_off)


def is_cut_off(name: str) -> bool:
    """Return whether this is the name of an unfinished copy in quarantine."""
    stem = name.removesuffix(TEMPORARY_SUFFIX)
    ours = stem.removesuffix(BYTES_SUFFIX).removesuffix(NOTE_SUFFIX)
    return stem != name and ours != stem and _NAME.fullmatch(ours) is not None


def purge(layout: VolumeLayout, *, before_ms: int, in_use: frozenset[str]) -> int:
    """Remove the copies that were quarantined before `before_ms`.

    Return the number of removed names. Keep copies that the journal needs (`in_use`), and files
    that are not part of the quarantine. If a foreign object in quarantine cannot be removed, keep
    it.
    """
    purged = set()
    with disk_errors(layout.quarantine):
        for path in list(layout.quarantine.iterdir()):
            stem = path.name.removesuffix(TEMPORARY_SUFFIX)
            for suffix in (BYTES_SUFFIX, NOTE_SUFFIX, ASIDE_SUFFIX):
                stem = stem.removesuffix(suffix)
            match = _NAME.fullmatch(stem)
            if match and int(match[1]) < before_ms and stem not in in_use and _remove(path):
                purged.add(stem)
    return len(purged)


def _remove(path: Path) -> bool:
    """Remove a file or foreign object from quarantine. Return whether it is gone.

    If the removal fails, raise OSError for a file, and return False for a foreign object.
    """
    if not path.name.endswith(ASIDE_SUFFIX):
        return remove_file(path)
    try:
        if stat.S_ISDIR(path.lstat().st_mode):
            remove_tree(path)
        else:
            path.unlink()
    except OSError:
        return False
    return True
