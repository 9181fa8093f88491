"""Removal of objects that obstruct the path of a replica's file, before a write.

- A block file with several hard links is replaced by a copy, because another link may belong to
  another owner, who needs the bytes unchanged.
- A directory, link or pipe in the place of a file is moved to quarantine. It is never followed or
  opened.
- A file in the place of a directory is moved to quarantine, and the directory is created.
- A directory in the place of a new replica is moved to quarantine.

Each change is one rename, which does not change the content of the replica. Therefore, a crash has
no effect. The caller holds the container's lease.
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

COPY_SUFFIX: Final = ".copy"  # in tmp/importing, which the agent empties at its start
NO_BLOCK: Final = BlockId(0)  # for an object in the place of a replica's directory
_numbers = count()


def clear_place(
    replica: ReplicaHandle, block_id: BlockId, *, reserve_bytes: int, end: int | None = None
) -> None:
    """Make sure that the path of a block is writable.

    It must have a regular file with one hard link, or no file. If the file has several hard links,
    replace it by a copy of the first `end` bytes, or of all bytes. Raise `BlockFailed` if the path
    cannot be made writable. Its code is DISK_OUT_OF_SPACE, with nothing changed, if the copy would
    leave less than `reserve_bytes` of free space.
    """
    volume, container_id = replica.volume, replica.container_id
    path = replica.paths.block_file(block_id)
    with block_errors(path):
        if _is_own(_facts(path)):
            return
        make_home(volume, container_id)  # the path to the file may contain a link
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
    """Replace the file at `path` by a copy of its first `length_bytes`.

    The other hard links of the original file keep its content.
    """
    try:
        extents.copy(fd, temporary, start=0, end=length_bytes)
        move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def make_home(volume: Volume, container_id: ContainerId, *files: Path) -> ReplicaPaths:
    """Create the missing directories of a replica. Return the paths of the replica.

    If another object is in the place of a directory, or of one of `files`, move it to quarantine.
    Raise OSError or SutureError if a directory cannot be created or an object cannot be moved.
    """
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
    """Move the object at the path of a new replica to quarantine, if there is one.

    The object has no row, so it was never reported. It may remain from a failed creation. Raise
    OSError or SutureError if the move fails.
    """
    root = volume.paths(container_id).root
    if _facts(root) is not None:
        put_aside(volume, container_id, NO_BLOCK, root)


def remove_failed_replica(volume: Volume, container_id: ContainerId) -> bool:
    """Remove the directory of a replica whose creation failed. Return whether its path is free.

    The directory is renamed before it is removed, so that no part of the replica remains in place.
    If the removal fails, the next start of the agent removes the renamed directory.
    """
    root, grave = volume.paths(container_id).root, volume.layout.deleting / str(container_id)
    with suppress(OSError):
        remove_tree(grave)
        if _facts(root) is not None:
            root.rename(grave)
            remove_tree(grave)
            sync_directory(root.parent)
    return _facts(root) is None


def remove_abandoned(volume: Volume, path: Path) -> None:
    """Remove an abandoned file or directory in tmp/.

    If the removal fails, move the object to tmp/deleting, where the agent tries again every hour.
    If the move fails, too, the next start of the agent removes the object.
    """
    try:
        remove(path)
    except OSError:
        with suppress(OSError):
            path.rename(volume.layout.deleting / f"{path.name}.{next(_numbers)}")


def has_home(paths: ReplicaPaths) -> bool:
    """Return whether the replica's directory of block files exists and is not a symbolic link."""
    found = [_facts(directory) for directory in (paths.root, paths.chunks)]
    return all(facts is not None and stat.S_ISDIR(facts.st_mode) for facts in found)


def put_aside(volume: Volume, container_id: ContainerId, block_id: BlockId, path: Path) -> None:
    """Move an object that is in the place of a replica's file or directory to quarantine."""
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
