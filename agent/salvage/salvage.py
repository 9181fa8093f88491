"""Salvage of all files on several volumes to another directory. Only verified bytes are written.

The index rows of all volumes give the list of files. Each block is read from any replica whose
bytes match their checksums. An incomplete file is listed but not written. On request, its readable
part is written to a separate folder. Files that an earlier run has written are verified and kept.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Final

from agent.salvage.blocks import Hole, Reader, matches
from agent.salvage.inventory import Inventory, SalvageFile, build_inventory
from agent.salvage.offline_volumes import opened
from agent.salvage.output_files import atomic_output, existing, sync
from merkle.replica import ContainerId
from suture.ec.scheme import Scheme
from suture.errors import Code, RefusedError, UnavailableError

MARK: Final = "salvage.json"  # file with the id of the cluster of the salvaged files
LIST: Final = "files.jsonl"  # one line per file: key, path, size, result
PARTIAL: Final = "partial"
LACKS_NAMED_MAX: Final = 100  # holes listed per file


@dataclass(slots=True)
class IncompleteFile:
    """An incomplete file. `missing_parts` describes about LACKS_NAMED_MAX of its missing parts."""

    key: str
    path: str
    size_bytes: int
    missing_parts: list[str]
    partial_path: str = ""


@dataclass(slots=True)
class SalvageSummary:
    """The result of a salvage: counts of files and bytes, and everything that could not be read."""

    cluster_id: str = ""
    written_count: int = 0
    kept_count: int = 0  # files that an earlier run had written
    written_bytes: int = 0
    nameless_count: int = 0  # number of written or kept blocks without a key
    deleted_count: int = 0  # blocks with a tombstone on another volume; they are written anyway
    incomplete_files: list[IncompleteFile] = field(default_factory=list)
    unreadable_volumes: dict[str, str] = field(default_factory=dict)
    damaged_rows: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Return whether all volumes and rows were readable, and all files are complete in the
        output."""
        return not (self.incomplete_files or self.unreadable_volumes or self.damaged_rows)


@dataclass(frozen=True, slots=True)
class Progress:
    """Callbacks for a progress display.

    `total` is called once with the size of all files together. `done` is called with the size of
    each file when the file is finished. Both sizes are in bytes.
    """

    total: Callable[[int], object] = lambda _total_bytes: None
    done: Callable[[int], object] = lambda _done_bytes: None


def salvage(
    paths: Sequence[Path],
    to: Path,
    *,
    scheme: Scheme | None = None,
    is_partial: bool = False,
    progress: Progress | None = None,
) -> SalvageSummary:
    """Write every file on the volumes to the directory `to`.

    `scheme` is the erasure code of blocks whose rows do not name their code. If `is_partial` is
    True, also write the readable parts of incomplete files.

    Raise RefusedError if a volume is in use, if the volumes belong to different clusters, if `to`
    is on a volume, or if `to` has other content. Raise UnavailableError if `to` cannot be written.
    """
    told = progress or Progress()
    summary = SalvageSummary()
    _refuse_inside(paths, to)
    with opened(paths, summary.unreadable_volumes) as volumes:
        if not volumes:
            raise RefusedError(
                Code.INCONSISTENT_VOLUME,
                "; ".join(f"{path}: {why}" for path, why in summary.unreadable_volumes.items()),
            )
        summary.cluster_id = volumes[0].layout.cluster_id
        try:
            _begin(to, summary.cluster_id)
            inventory = build_inventory(volumes, scheme)
            summary.deleted_count = inventory.deleted_count
            told.total(sum(one.size_bytes for one in inventory.files))
            with atomic_output(to, LIST) as lines:
                for wanted in inventory.files:
                    state = _one(inventory, wanted, to, summary, is_partial=is_partial)
                    lines.write(json.dumps({**asdict(wanted), "state": state}).encode() + b"\n")
                    told.done(wanted.size_bytes)
            sync(to)
        except OSError as error:
            raise UnavailableError(
                Code.IO_EXCEPTION,
                f"cannot write {error.filename or to}: {error.strerror or error}",
                hint="free space and run the command again; it continues",
            ) from error
        summary.damaged_rows = [row for volume in volumes for row in volume.damaged_rows]
    return summary


def _one(
    inventory: Inventory,
    wanted: SalvageFile,
    to: Path,
    summary: SalvageSummary,
    *,
    is_partial: bool,
) -> str:
    """Write one file and return its state for the list of files.

    The state is "written", "kept" (an earlier run has written the file), "partial" (only the
    readable parts were written) or "not whole" (incomplete, and nothing was written).
    """
    why = [wanted.lack] if wanted.lack else []
    if not why:
        if _is_there(inventory, wanted, to):
            summary.kept_count += 1
            summary.nameless_count += not wanted.key
            return "kept"
        why = _write(inventory, wanted, to)
        if not why:
            summary.written_count += 1
            summary.written_bytes += wanted.size_bytes
            summary.nameless_count += not wanted.key
            return "written"
    lack = IncompleteFile(wanted.key, wanted.path, wanted.size_bytes, why)
    summary.incomplete_files.append(lack)
    if is_partial:
        lack.partial_path = f"{PARTIAL}/{wanted.path}"
        with atomic_output(to, lack.partial_path) as file:
            missing = _copy(inventory, wanted, file, is_partial=True)
        lack.missing_parts = list(dict.fromkeys([*why, *missing]))
        return "partial"
    return "not whole"


class _NotWhole(Exception):
    """Raised inside `_write` to stop and remove the output of an incomplete file."""


def _write(inventory: Inventory, wanted: SalvageFile, to: Path) -> list[str]:
    """Write a file and return an empty list.

    If the file is incomplete, remove it from the output and return descriptions of the missing
    parts.
    """
    why: list[str] = []
    with suppress(_NotWhole), atomic_output(to, wanted.path) as file:
        why = _copy(inventory, wanted, file, is_partial=False)
        _end_if_not_whole(why)
    return why


def _end_if_not_whole(why: Sequence[str]) -> None:
    if why:
        raise _NotWhole


def _copy(
    inventory: Inventory, wanted: SalvageFile, file: IO[bytes], *, is_partial: bool
) -> list[str]:
    """Write the readable bytes of a file, and return descriptions of the missing parts.

    If `is_partial` is True, missing bytes are written as zeros. Otherwise, writing of a block ends
    at its first missing bytes.
    """
    why: list[str] = []
    size_bytes = 0
    for container_id, local_id in wanted.blocks:
        where = f"container {container_id}, block {local_id}"
        reader = _reader(inventory, container_id, local_id)
        if reader is None:
            why.append(f"{where}: erasure-coded, and no block says how: name it by --scheme")
            continue
        for piece in reader.pieces():
            if not isinstance(piece, Hole):
                file.write(piece)
                size_bytes += len(piece)
                continue
            if len(why) < LACKS_NAMED_MAX:
                why.append(f"{where}, {piece.length_bytes} bytes from {piece.offset}: {piece.why}")
            if not is_partial:
                break
            file.seek(piece.length_bytes, os.SEEK_CUR)
            size_bytes += piece.length_bytes
    if is_partial:
        file.truncate(max(size_bytes, file.tell()))
    elif not why and size_bytes != wanted.size_bytes:
        why.append(f"{size_bytes} bytes were read, its parts say {wanted.size_bytes}")
    return why


def _reader(inventory: Inventory, container_id: int, local_id: int) -> Reader | None:
    copies = inventory.copies(container_id, local_id)
    is_coded = any(copy.replica_index for copy in copies)
    scheme = inventory.schemes.get(ContainerId(container_id))
    if is_coded and scheme is None:
        return None
    return Reader(copies, scheme if is_coded else None)


def _is_there(inventory: Inventory, wanted: SalvageFile, to: Path) -> bool:
    """Return whether an earlier run has written the file. All bytes of the file are compared."""
    with existing(to, wanted.path, wanted.size_bytes) as file:
        return file is not None and all(
            _is_same(inventory, container_id, local_id, file)
            for container_id, local_id in wanted.blocks
        )


def _is_same(inventory: Inventory, container_id: int, local_id: int, file: IO[bytes]) -> bool:
    copies = inventory.copies(container_id, local_id)
    chunks = {copy.block.chunks for copy in copies}
    if len(chunks) == 1 and not any(copy.replica_index for copy in copies):
        described = chunks.pop()
        end = described[-1].end if described else 0
        return matches(described, file.read(end))
    reader = _reader(inventory, container_id, local_id)
    return reader is not None and all(
        not isinstance(piece, Hole) and file.read(len(piece)) == piece for piece in reader.pieces()
    )


def _refuse_inside(paths: Sequence[Path], to: Path) -> None:
    there = Path(os.path.realpath(to))
    for path in paths:
        volume = Path(os.path.realpath(path))
        if volume == there or volume in there.parents:
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"cannot salvage into {to}: it is on the volume {path}, and volumes are only read",
                hint="name a directory on another disk with enough space for all files",
            )


def _begin(to: Path, cluster_id: str) -> None:
    """Create the output directory and a mark file with the cluster id, for a new salvage.

    If an earlier salvage of the same cluster has created the directory, leave it unchanged. Raise
    RefusedError if the directory belongs to another cluster or has other content.
    """
    to.mkdir(parents=True, exist_ok=True)
    mark = to / MARK
    if os.path.lexists(mark):
        try:
            known = json.loads(mark.read_text())["cluster_id"]
        except (ValueError, KeyError, TypeError) as error:
            raise RefusedError(Code.INVALID_CONFIG, f"{mark} is damaged: {error}") from error
        if known != cluster_id:
            raise RefusedError(
                Code.WRONG_CLUSTER,
                f"cannot salvage into {to}: it has files of cluster "
                f"{known}, the volumes belong to {cluster_id}",
            )
        return
    if any(to.iterdir()):
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot salvage into {to}: it is not empty and has no earlier salvage",
            hint="name a new directory",
        )
    with atomic_output(to, MARK) as file:
        file.write(json.dumps({"cluster_id": cluster_id}).encode() + b"\n")
