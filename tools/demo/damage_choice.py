"""Chooses the demo's damage: each kind at least once, and never the last intact copy of a chunk.

Within one container no block is damaged on two replicas, so a healthy copy of each chunk exists.
The three replicas have different damage, so none of them is intact.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from merkle.replica import BlockData, ContainerId
from suture.client.cluster_client import ClusterClient
from suture.errors import Code, RefusedError
from suture.wire.v1 import scm_pb2
from tools.demo.cluster import Cluster
from tools.demo.damage import (
    PAGE_BYTES,
    WAYS,
    WHILE_STOPPED,
    Damage,
    Target,
    tree_restorer,
    zero_page,
)

BLOCKS_MIN: Final = 2 * (len(WAYS) + 1)  # two blocks for each kind, and for the restored old tree
BLOCK_BYTES_MIN: Final = 2 * PAGE_BYTES  # with smaller blocks, some kinds of damage look alike


@dataclass(frozen=True, slots=True)
class Harm:
    """A damage and its replica."""

    datanode_id: str
    damage: Damage


def harm_cluster(
    infos: Sequence[scm_pb2.ContainerInfo],
    cluster: Cluster,
    client: ClusterClient,
    indexes: dict[str, int],
) -> list[Harm]:
    """Damage replicas of one container after another, until each kind of damage was used; return
    the damages."""
    harms: list[Harm] = []
    blocks = {info.container_id: damageable_blocks(client, info) for info in infos}
    roomy = [info for info in infos if len(blocks[info.container_id]) >= BLOCKS_MIN]
    if not roomy:
        raise RefusedError(
            Code.INELIGIBLE,
            f"no container has {BLOCKS_MIN} blocks of {BLOCK_BYTES_MIN} bytes to damage",
            hint="give the demo a directory with more files",
        )
    for turn in range(max(len(WAYS), len(roomy))):
        info = roomy[turn % len(roomy)]
        replica = info.replicas[turn // len(roomy) % len(info.replicas)]
        pairs = blocks[info.container_id]
        pick = [pairs.pop(), pairs.pop()]
        target = target_of(cluster, indexes, info.container_id, replica, pick)
        way, index = WAYS[turn % len(WAYS)], indexes[replica.datanode.datanode_id]
        if way in WHILE_STOPPED:
            cluster.nodes[index].stop()
        harms.append(Harm(replica.datanode.datanode_id, way(target)))
        if way in WHILE_STOPPED:
            cluster.start_again(index)
    info = roomy[0]
    replica = replica_with_descriptor(info, harms)
    harms += stale_tree(cluster, client, indexes, info, replica, blocks[info.container_id])
    return harms


def replica_with_descriptor(
    info: scm_pb2.ContainerInfo, harms: Sequence[Harm]
) -> scm_pb2.ContainerInfoReplica:
    """Return a replica whose descriptor is not damaged, because a scan between damages would
    rewrite it."""
    taken = {
        harm.datanode_id
        for harm in harms
        if harm.damage.container_id == info.container_id
        and "DESCRIPTOR_DAMAGED" in harm.damage.file_faults
    }
    return next(r for r in reversed(info.replicas) if r.datanode.datanode_id not in taken)


def stale_tree(
    cluster: Cluster,
    client: ClusterClient,
    indexes: dict[str, int],
    info: scm_pb2.ContainerInfo,
    replica: scm_pb2.ContainerInfoReplica,
    blocks: list[BlockData],
) -> Iterator[Harm]:
    """Damage a page, run a scan that writes a newer tree, and restore the older tree file; yield
    the damages."""
    target = target_of(cluster, indexes, info.container_id, replica, [blocks.pop(), blocks.pop()])
    restore: Callable[[], Damage] = tree_restorer(target)
    yield Harm(replica.datanode.datanode_id, zero_page(target))
    client.peer(replica.datanode).scanned(ContainerId(info.container_id))
    yield Harm(replica.datanode.datanode_id, restore())


def damageable_blocks(client: ClusterClient, info: scm_pb2.ContainerInfo) -> list[BlockData]:
    """Return the blocks of a container that are large enough to damage, in a fixed random order."""
    peer = client.peer(info.replicas[0].datanode)
    blocks = peer.blocks_of(ContainerId(info.container_id))
    large = [block for block in blocks if block.length_bytes >= BLOCK_BYTES_MIN]
    random.Random(info.container_id).shuffle(large)  # noqa: S311 - the same in every run
    return large


def target_of(
    cluster: Cluster,
    indexes: dict[str, int],
    container_id: int,
    replica: scm_pb2.ContainerInfoReplica,
    blocks: Sequence[BlockData],
) -> Target:
    """Return the replica's directory with the blocks to damage."""
    return Target(
        container_id=container_id,
        root=replica_root(cluster, indexes[replica.datanode.datanode_id], container_id),
        block_ids=tuple(block.block_id for block in blocks),
        chunk_bytes=tuple(block.chunks[0].length_bytes for block in blocks),
        block_bytes=tuple(block.length_bytes for block in blocks),
    )


def replica_root(cluster: Cluster, index: int, container_id: int) -> Path:
    """Return the directory of a replica on the volumes of agent `index`. Raise RefusedError if the
    agent has no replica."""
    for volume in cluster.volume_paths(index):
        for root in volume.glob(f"hdds/*/current/containerDir*/{container_id}"):
            return root
    raise RefusedError(
        Code.CONTAINER_NOT_FOUND, f"container {container_id} is not on datanode {index}"
    )
