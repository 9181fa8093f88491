"""Quarantine: bytes removed from a replica, kept for a time in case they are needed again.

    quarantine/<container>-<block>-<offset>-<ms>.bytes     the removed bytes
    quarantine/<container>-<block>-<offset>-<ms>.aside     a foreign object, moved unchanged
    quarantine/<container>-<block>-<offset>-<ms>.json      origin, time and reason

The bytes replaced by one batch of a repair are in one copy, of block 0; its note assigns the parts.
A copy is durable before the original is touched. Copies are removed by age only.
"""

import json
import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
NO_BLOCK: Final = BlockId(0)  # for a piece of several blocks; ids begin at 1
BATCH_OFFSET: Final = 0
FORMER_MAX: Final = 4  # pieces compared with a damaged chunk
NOTE_BYTES_MAX: Final = 1024**2
_NAME: Final = re.compile(r"\d+-\d+-\d+-(\d+)(?:-\d+)?")


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """Origin, time and reason of a quarantined piece."""

    container_id: ContainerId
    block_id: BlockId
    offset: int
    length_bytes: int
    at_ms: int
    why: str
    metadata: tuple[tuple[str, str], ...] = ()  # of a whole block: its client metadata


class QuarantinedRange(NamedTuple):
    """Part of a copy of several places: `length_bytes` of this one, from `start` on."""

    block_id: BlockId
    offset: int
    length_bytes: int
    start: int


Names: TypeAlias = defaultdict[tuple[BlockId, int], list[str]]
Parts: TypeAlias = defaultdict[tuple[BlockId, int], list[tuple[Path, QuarantinedRange]]]


def quarantine_bytes(layout: VolumeLayout, note: QuarantineEntry, data: bytes) -> str:
    """Keep a durable copy of `data`; return its name. Raise the store's errors."""
    name = free_name(layout, note)
    _write_note(layout, name, note)
    replace_file(layout.quarantine / (name + BYTES_SUFFIX), data)
    return name


Part: TypeAlias = tuple[BlockId, int, bytes]
"""Block, offset and bytes of one place."""


def quarantine_ranges(
    layout: VolumeLayout, container_id: ContainerId, parts: Sequence[Part], *, at_ms: int, why: str
) -> tuple[str, list[int]]:
    """Keep one durable copy of several places of a replica; return its name, and the start of each
    place in it. Raise the store's errors."""
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
    copy = b"".join(data for _, _, data in parts)
    replace_file(layout.quarantine / (name + BYTES_SUFFIX), copy)
    return name, starts


class QuarantinedPieces:
    """Quarantined pieces of one container; the folder is listed once, at the first request."""

    def __init__(self, folder: Path, container_id: ContainerId) -> None:
        self._folder = folder
        self._prefix = f"{container_id}-"

    def of(self, block_id: BlockId, offset: int) -> Iterator[bytes]:
        """Yield the quarantined bytes of one place, newest first: from its own copies, then from
        those of several places; a few of each. Raise OSError."""
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
            with suppress(OSError):  # an unreadable piece does not block others
                for part in parts_of(path):
                    if isinstance(part.block_id, int) and isinstance(part.offset, int):
                        shared[part.block_id, part.offset].append((copy, part))
        return own, shared


def parts_of(note_path: Path) -> list[QuarantinedRange]:
    """Return the parts of a copy of several places; none for a note of another kind, or a damaged
    one. Raise OSError."""
    try:
        told = json.loads(read_file(note_path, bytes_max=NOTE_BYTES_MAX))
        return [QuarantinedRange(*part) for part in told.get("parts", ())]
    except (ValueError, TypeError, AttributeError):
        return []


def keep_tail(layout: VolumeLayout, note: QuarantineEntry, path: Path) -> str:
    """Keep a durable copy of the end of a block file, with its holes; return its name."""
    name = free_name(layout, note)
    _write_note(layout, name, note)
    target = content_path(layout, name)
    temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
    with block_errors(target):
        try:
            with blockfile.opened(path, os.O_RDONLY) as fd:
                end = note.offset + note.length_bytes
                extents.copy(fd, temporary, start=note.offset, end=end)
            move(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    return name


def keep_file(layout: VolumeLayout, note: QuarantineEntry, path: Path) -> str:
    """Move a whole file into quarantine; return its name."""
    name = free_name(layout, note)
    _write_note(layout, name, note)
    with block_errors(path):
        move(path, content_path(layout, name))
    return name


def quarantine_foreign(layout: VolumeLayout, note: QuarantineEntry, path: Path) -> str:
    """Move a foreign object of any kind into quarantine; return its name. Raise OSError, with
    nothing changed."""
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
    """Return an unused name, because the same place may be replaced twice in a millisecond."""
    name = f"{note.container_id}-{note.block_id}-{note.offset}-{note.at_ms}"
    number = 0
    while (layout.quarantine / (name + NOTE_SUFFIX)).exists():
        number += 1
        name = f"{note.container_id}-{note.block_id}-{note.offset}-{note.at_ms}-{number}"
    return name


def content_path(layout: VolumeLayout, name: str) -> Path:
    """Return the path of a quarantined piece's bytes."""
    return layout.quarantine / (name + BYTES_SUFFIX)


def forget(layout: VolumeLayout, name: str) -> None:
    """Remove one piece."""
    with disk_errors(layout.quarantine):
        remove_file(content_path(layout, name))
        remove_file(layout.quarantine / (name + NOTE_SUFFIX))


def remove_cut_off(layout: VolumeLayout) -> int:
    """Remove unfinished copies of a crash, whose originals are untouched. Return their number.

    Only at the start, before any copy is being written.
    """
    with disk_errors(layout.quarantine):
        cut_off = [path for path in layout.quarantine.iterdir() if is_cut_off(path.name)]
        for path in cut_off:
            remove_file(path)
    return len(cut_off)


def is_cut_off(name: str) -> bool:
    """Return whether a file in quarantine is an unfinished copy."""
    stem = name.removesuffix(TEMPORARY_SUFFIX)
    ours = stem.removesuffix(BYTES_SUFFIX).removesuffix(NOTE_SUFFIX)
    return stem != name and ours != stem and _NAME.fullmatch(ours) is not None


def purge(layout: VolumeLayout, *, before_ms: int, in_use: frozenset[str]) -> int:
    """Remove pieces quarantined before `before_ms`, except those in the journal.

    Return the number of removed pieces. Foreign files are left alone, and objects moved aside that
    cannot be removed stay.
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
    """Remove a piece; return whether it is gone. Raise OSError for one of the agent's files."""
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
