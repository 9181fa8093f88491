"""What can stand where a file of a replica is to be written, and how it is got out of the way.

    another name for the same file    a copy of it takes the name: nothing is written through a name
                                      that may be the good copy of something else
    a directory, a link, a pipe       goes to quarantine as it is: never followed, never opened
    no directory where one belongs    likewise, and the directory is made
    a directory where none belongs    likewise, before a new replica takes its place

Each is one rename, after which the replica holds what it held: a crash before it changes nothing.
The caller holds the container's lease.
"""

import os
import stat
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from agent.store.files import blockfile, extents
from agent.store.files.durable import (
    block_errors,
    make_directories,
    move,
    open_new,
    remove,
    remove_tree,
    sync_directory,
)
from agent.store.files.kinds import kind_at
from agent.store.files.layout import ReplicaPaths
from agent.store.replica import quarantine
from agent.store.replica.quarantine import Note
from agent.store.volumes.volume import Volume, check_space_of_block
from merkle.replica import BlockId, ContainerId

COPY_SUFFIX: Final = ".copy"  # in tmp/importing, which a start empties
NO_BLOCK: Final = BlockId(0)  # of what stands where a directory of the replica belongs
_numbers = count()


def clear_place(
    volume: Volume,
    container_id: ContainerId,
    block_id: BlockId,
    *,
    reserve_bytes: int,
    end: int | None = None,
) -> None:
    """Make a block's place one that may be written: its own file, or nothing yet.

    Of a file that has other names only what is before `end` is kept, where it is given. Raises
    `BlockFailed`, with DISK_OUT_OF_SPACE for a copy that would touch the reserve; nothing is
    changed then.
    """
    path = volume.paths(container_id).block_file(block_id)
    with block_errors(path):
        if _is_own(_facts(path)):
            return
        make_home(volume, container_id)  # what was seen may be elsewhere, behind a link
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
    """Let a copy of the first `length_bytes` have the name, so that the file keeps its others."""
    try:
        copy_fd = open_new(temporary)
        try:
            extents.copy(source_fd=fd, target_fd=copy_fd, start=0, end=length_bytes)
        finally:
            os.close(copy_fd)
        move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def make_home(volume: Volume, container_id: ContainerId, *files: Path) -> ReplicaPaths:
    """Make the directories of a replica, which can be lost with all that is in them, and return
    its paths. What stands in the place of one, or of one of the `files` that are to be written, is
    put aside. Raises OSError, SutureError."""
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


def make_way(volume: Volume, container_id: ContainerId) -> None:
    """Put aside what stands where a new replica is to be: it has no row, so nobody is told of it.
    One whose making failed may have been left there. Raises OSError, SutureError."""
    root = volume.paths(container_id).root
    if _facts(root) is not None:
        put_aside(volume, container_id, NO_BLOCK, root)


def take_away(volume: Volume, container_id: ContainerId) -> bool:
    """Remove a replica whose making failed, and of which nobody was told, in an order that leaves
    no part of one in its place. Returns whether the place is free; the rest goes at a start."""
    root, grave = volume.paths(container_id).root, volume.layout.deleting / str(container_id)
    with suppress(OSError):
        remove_tree(grave)
        if _facts(root) is not None:
            root.rename(grave)
            remove_tree(grave)
            sync_directory(root.parent)
    return _facts(root) is None


def clear_away(volume: Volume, path: Path) -> None:
    """Remove what was being built and is given up. Where that fails it is moved to where it is
    tried again every hour, under a name that nobody else has; else it goes at the next start."""
    try:
        remove(path)
    except OSError:
        with suppress(OSError):
            path.rename(volume.layout.deleting / f"{path.name}.{next(_numbers)}")


def has_home(paths: ReplicaPaths) -> bool:
    """Return whether the directory of a replica's blocks is there, and no link leads to it."""
    found = [_facts(directory) for directory in (paths.root, paths.chunks)]
    return all(facts is not None and stat.S_ISDIR(facts.st_mode) for facts in found)


def put_aside(volume: Volume, container_id: ContainerId, block_id: BlockId, path: Path) -> None:
    """Move what has the name of a file or directory of ours, and is none, to quarantine."""
    facts = path.lstat()
    note = Note(
        container_id=container_id,
        block_id=block_id,
        offset=0,
        length_bytes=facts.st_size,
        at_ms=volume.index.now_ms(),
        why=f"{kind_at(path)} in the place of {path.name}",
    )
    quarantine.keep_aside(volume.layout, note, path)
