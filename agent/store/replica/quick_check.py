"""Quick check of a replica's files: they must exist and begin correctly.

The check reads the descriptor and the first bytes of the tree file, but no data and no index. It
covers all replicas of a host in minutes. A fault causes a scan of the replica. Only the scan
decides if the replica is damaged.
"""

import os
from collections.abc import Iterator

from agent.store.files.layout import ReplicaPaths
from agent.store.replica.descriptor import read_descriptor
from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId
from merkle.tree_codec import MAGIC
from suture.runtime.durable import open_file
from suture.runtime.file_kinds import absence, kind_at

HEAD_BYTES = 24  # magic, version, algorithm, zero, container id


def quick_check(paths: ReplicaPaths, container_id: ContainerId, *, has_tree: bool) -> list[str]:
    """Return a description of each fault that the check finds.

    Raise OSError if a file cannot be read because of the host, for example without free
    descriptors.
    """
    return list(_faults(paths, container_id, has_tree=has_tree))


def _faults(paths: ReplicaPaths, container_id: ContainerId, *, has_tree: bool) -> Iterator[str]:
    for directory in (paths.root, paths.chunks, paths.descriptor.parent):
        if not directory.is_dir():
            yield f"{directory.name}: {kind_at(directory)} instead of a directory"
    try:
        read_descriptor(paths.descriptor, container_id)
    except (FileNotFoundError, NotADirectoryError) as error:
        yield absence(paths.descriptor, error)
    except DamagedData as damage:
        yield str(damage)
    if has_tree:
        yield from _tree_faults(paths, container_id)


def _tree_faults(paths: ReplicaPaths, container_id: ContainerId) -> Iterator[str]:
    try:
        fd = open_file(paths.tree)
    except (FileNotFoundError, NotADirectoryError) as error:
        yield absence(paths.tree, error)
        return
    try:
        head = os.pread(fd, HEAD_BYTES, 0)
    finally:
        os.close(fd)
    if head[: len(MAGIC)] != MAGIC:
        yield f"{paths.tree.name} does not begin as a tree"
    elif int.from_bytes(head[16:HEAD_BYTES], "little") != container_id:
        yield f"{paths.tree.name} is of another container"
