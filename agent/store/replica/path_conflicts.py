"""Obstacles in the place of a replica's file, and their removal before a write.

    another name for the same file    replaced by a copy: nothing is written through a name
                                      that may be the good copy of something else
    a directory, a link, a pipe       moved to quarantine: never followed, never opened
    no directory where one belongs    moved to quarantine, and the directory is created
    a directory where none belongs    moved to quarantine, before a new replica takes its place

Each is one rename, after which the replica's content is unchanged, so a crash before it has no
effect. The caller holds the container's lease.
"""

import os
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from agent.store.files import blockfile, extents
from agent.store.files.layout import ReplicaPaths
from agent.store.replica import quarantine
from agent.store.replica.handle import ReplicaHandle
from agent.store.replica.quarantine import QuarantineEntry
from agent.store.volumes.volume import Volume, check_space_of_block
from merkle.replica import BlockId, ContainerId
from suture.runtime.durable import (
    block_errors,
    make_directories,
    move,
    remove,
    remove_tree,
    sync_directory,
)
from suture.runtime.file_kinds import kind_at

COPY_SUFFIX: Final = ".copy"  # in tmp/importing, which a start empties
NO_BLOCK: Final = BlockId(0)  # for an object in the place of a replica's directory
_numbers = count()


def clear_place(
    replica: ReplicaHandle, block_id: BlockId, *, reserve_bytes: int, end: int | None = None
) -> None:
    """Make a block's place writable: its own file, or nothing yet.

    If the file has other names, keep only the part before `end`, if given. Raise `BlockFailed`,
    with DISK_OUT_OF_SPACE for a copy that would use the reserve; then nothing is changed.
    """
    volume, container_id = replica.volume, replica.container_id
    path = replica.paths.block_file(block_id)
    with block_errors(path):
        if _is_own(_facts(path)):
            return
        make_home(volume, container_id)  # the object seen may be behind a link
        facts = _facts(path)
        if facts is None or _is_own(facts):
            return
        if not stat.S_ISREG(facts.st_mode):
            put_aside(volume, container_id, block_id, path)
            return
        temporary = volume.layout.importing / f"{container_id}-{block_id}{COPY_SUFFIX}"
        with blockfile.opened(path, os.O_RDONLY) as fd:
            size = facts.st_size if end is None else min(end, facts.st_size)
            needed_bytes = extents.data_bytes(fd, 0, size)
            check_space_of_block(volume, needed_bytes, reserve_bytes=reserve_bytes)
            _put_copy(fd, size, temporary, path)


def _facts(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_own(facts: os.stat_result | None) -> bool:
    return facts is not None and stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1


def _put_copy(fd: int, length_bytes: int, temporary: Path, path: Path) -> None:
    """Replace the name by a copy of the first `length_bytes`; the original file keeps its other
    names."""
    try:
        extents.copy(fd, temporary, start=0, end=length_bytes)
        move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def make_home(volume: Volume, container_id: ContainerId, *files: Path) -> ReplicaPaths:
    """Create the directories of a replica, which may have been lost with their content, and return
    its paths. Objects in the place of a directory, or of one of the `files` to be written, are
    moved aside. Raise OSError, SutureError."""
    paths = volume.paths(container_id)
    for directory in (paths.root, paths.chunks, paths.descriptor.parent):
        facts = _facts(directory)
        if facts is not None and stat.S_ISDIR(facts.st_mode):
            continue
        if facts is not None:
            put_aside(volume, container_id, NO_BLOCK, directory)
        make_directories(directory, below=volume.layout.current)
    for path in files:
        facts = _facts(path)
        if facts is not None and not stat.S_ISREG(facts.st_mode):
            put_aside(volume, container_id, NO_BLOCK, path)
    return paths


def set_aside_existing(volume: Volume, container_id: ContainerId) -> None:
    """Move an object aside that is in the place of a new replica. It has no row, so it was never
    reported; it may be the remains of a failed creation. Raise OSError, SutureError."""
    root = volume.paths(container_id).root
    if _facts(root) is not None:
        put_aside(volume, container_id, NO_BLOCK, root)


def remove_failed_replica(volume: Volume, container_id: ContainerId) -> bool:
    """Remove a replica whose creation failed and that was never reported, in an order that
    leaves no part of it in its place. Return whether the place is free; the next start removes
    the rest."""
    root, grave = volume.paths(container_id).root, volume.layout.deleting / str(container_id)
    with suppress(OSError):
        remove_tree(grave)
        if _facts(root) is not None:
            root.rename(grave)
            remove_tree(grave)
            sync_directory(root.parent)
    return _facts(root) is None


def remove_abandoned(volume: Volume, path: Path) -> None:
    """Remove an abandoned construction. If that fails, move it under a unique name to the directory
    that is retried every hour; otherwise the next start removes it."""
    try:
        remove(path)
    except OSError:
        with suppress(OSError):
            path.rename(volume.layout.deleting / f"{path.name}.{next(_numbers)}")


def has_home(paths: ReplicaPaths) -> bool:
    """Return whether the directory of a replica's blocks exists, not through a link."""
    found = [_facts(directory) for directory in (paths.root, paths.chunks)]
    return all(facts is not None and stat.S_ISDIR(facts.st_mode) for facts in found)


def put_aside(volume: Volume, container_id: ContainerId, block_id: BlockId, path: Path) -> None:
    """Move an object in the place of a replica's file or directory to quarantine."""
    facts = path.lstat()
    note = QuarantineEntry(
        container_id=container_id,
        block_id=block_id,
        offset=0,
        length_bytes=facts.st_size,
        at_ms=volume.index.now_ms(),
        why=f"{kind_at(path)} in the place of {path.name}",
    )
    quarantine.quarantine_foreign(volume.layout, note, path)
