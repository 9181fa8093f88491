"""Checks that no peer has data that a replica lacks, before the replica is marked CLOSED.

After an incomplete write, an UNHEALTHY replica may match its own rows but lack the last blocks, or
the end of a block. Ozone copies from CLOSED replicas and deletes UNHEALTHY ones. Therefore, a
replica may be marked CLOSED only if it has all data of its peers.
"""

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Final

from agent.plan.actions import PeerId
from merkle.damaged_data import DamagedData
from merkle.replica import BlockId, ContainerId, ReplicaState
from ozone.clients.datanode import Datanode
from ozone.disk.blockrow import decode_stored
from ozone.disk.layout import ContainerPaths
from ozone.disk.rows import ContainerRows
from ozone.disk.small_files import read_small
from ozone.disk.treefile import TREE_BYTES_MAX, decode_tree
from ozone.disk.unsupported_format import UnsupportedFormat
from suture.errors import Code, RefusedError, UnavailableError

NAMED_MAX: Final = 3  # blocks that an error names
ASKED_MAX: Final = 1_000  # blocks per query: a container may have millions


def lengths_of(rows: ContainerRows, container_id: ContainerId) -> dict[BlockId, int]:
    """Return the length in bytes of each block according to its row, by block id.

    Omit invalid rows.
    """
    lengths_bytes = {}
    for block_id, row, tail in rows.blocks():
        try:
            stored = decode_stored(container_id, block_id, row, tail)
        except (DamagedData, UnsupportedFormat):
            continue
        lengths_bytes[block_id] = stored.block.length_bytes
    return lengths_bytes


def tombstones_of(paths: ContainerPaths) -> Collection[BlockId]:
    """Return the ids of the deleted blocks in Ozone's tree of the local replica.

    Return an empty collection if the tree cannot be read.
    """
    try:
        return decode_tree(read_small(paths.tree, TREE_BYTES_MAX), paths.container_id).tombstones
    except (DamagedData, OSError):
        return ()


def check_not_behind(
    peer_id: PeerId,
    datanode: Datanode,
    container_id: ContainerId,
    lengths_bytes: Mapping[BlockId, int],
    *,
    deleted: Collection[BlockId],
) -> None:
    """Raise RefusedError if the peer has a block that the local replica lacks.

    Also raise it if the peer has a longer version of a block. `lengths_bytes` has the lengths of
    the local blocks. Ignore blocks in `deleted`. Also raise RefusedError if the comparison is
    impossible. Raise UnavailableError if the peer does not answer.
    """
    try:
        _check(peer_id, datanode, container_id, lengths_bytes, deleted)
    except UnavailableError as error:
        raise UnavailableError(
            error.code,
            f"cannot mark the container closed: {peer_id} did not answer: {error}",
            hint="try again when every --peer answers; omit peers that are gone for good",
        ) from error


def _check(
    peer_id: PeerId,
    datanode: Datanode,
    container_id: ContainerId,
    lengths_bytes: Mapping[BlockId, int],
    deleted: Collection[BlockId],
) -> None:
    said = datanode.container(container_id).state
    if said not in {ReplicaState.CLOSED, ReplicaState.UNHEALTHY}:
        raise RefusedError(
            Code.INVALID_CONTAINER_STATE,
            f"{peer_id} has the container {said}: it is not marked closed here",
            hint="check the container with ozone admin container info",
        )
    theirs = set(datanode.block_ids(container_id))
    more = theirs - lengths_bytes.keys() - set(deleted)
    common = iter(sorted(theirs & lengths_bytes.keys()))
    while not more and (asked := list(islice(common, ASKED_MAX))):
        for block_id, block in datanode.blocks(container_id, asked):
            if isinstance(block, RefusedError):
                if block.code is not Code.NO_SUCH_BLOCK:  # the block was deleted after the listing
                    raise block
            elif block.length_bytes > lengths_bytes[block_id]:
                more.add(block_id)
    if more:
        named = ", ".join(map(str, sorted(more)[:NAMED_MAX]))
        raise RefusedError(
            Code.BCSID_MISMATCH,
            f"{peer_id} has {len(more)} blocks, or more of them, that are not here: {named}; "
            "the container is not marked closed here",
            hint="mark only a complete replica closed; Ozone removes the others",
        )
