"""The demo's erasure-coded files: one shard is lost, another is damaged, and both are repaired.

The control plane rebuilds the lost shard as soon as the loss is reported. The flipped bit is
handled like all other damage: a scan finds it, Spark plans the repair, and the chunk is computed
from its stripe. At the end, all shards are verified against each other.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from agent.reconstruct.parity_check import ParityReport, verify_parity
from merkle.replica import ContainerId
from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile, chunks_of, pieces_of
from suture.ec.rebuild_task import ShardLocation
from suture.ec.scheme import SHARDS_MAX, Scheme, parse_scheme
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tools.demo.cluster import Cluster
from tools.demo.damage import flip_bit_under_warm_cache
from tools.demo.damage_choice import Harm, target_of
from tools.demo.readback import checksum_of

CODED_BYTES_MAX: Final = 8 * 1024**2
SCHEMES: Final = ("rs-3-2-64k", "xor-2-1-64k")  # the first one for which there are enough datanodes
PREFIX: Final = "coded/"
DAMAGED_INDEX: Final = 1

OUTCOMES_LOOKED_AT: Final = 100

WaitUntil = Callable[[Callable[[], bool], str], None]


@dataclass(slots=True)
class Coded:
    """Facts about the demo's erasure-coded files: the stored data, the damage, and the repair."""

    scheme: str = ""
    files: int = 0
    stored_bytes: int = 0
    containers: list[int] = field(default_factory=list)
    harm: Harm | None = None
    rebuilt_on: str = ""
    rebuild_read_bytes: int = 0
    stripes: int = 0

    @property
    def code(self) -> Scheme:
        """The erasure code."""
        return parse_scheme(self.scheme)

    @property
    def lost_index(self) -> int:
        """The index of the shard to remove: the first parity shard, which has a part of every
        file."""
        return self.code.data_count + 1


def scheme_for(datanode_count: int) -> str:
    """Return an erasure code for this number of datanodes."""
    return next(s for s in SCHEMES if parse_scheme(s).shard_count <= datanode_count)


def chosen(sources: Sequence[SourceFile]) -> list[SourceFile]:
    """Return the first sources, up to CODED_BYTES_MAX, with the prefix `coded/` in their keys."""
    found: list[SourceFile] = []
    for source in sources:
        if sum(item.size_bytes for item in found) + source.size_bytes <= CODED_BYTES_MAX:
            found.append(replace(source, key=PREFIX + source.key))
    return found


def store(client: ClusterClient, sources: Sequence[SourceFile], datanode_count: int) -> Coded:
    """Store some of the sources erasure-coded, and close their containers; return the facts."""
    scheme = scheme_for(datanode_count)
    wanted = chosen(sources)
    stored, containers = client.put(wanted, lanes=1, close=True, scheme=parse_scheme(scheme))
    size_bytes = sum(item.size_bytes for item in stored)
    return Coded(scheme, len(stored), size_bytes, containers)


def is_complete(coded: Coded, info: scm_pb2.ContainerInfo) -> bool:
    """Return True if every shard of a container is present once, CLOSED and with a tree."""
    indexes = [item.replica.replica_index for item in info.replicas]
    return sorted(indexes) == list(coded.code.indexes) and all(
        item.replica.state == container_pb2.CLOSED and item.replica.HasField("tree")
        for item in info.replicas
    )


def harm(
    coded: Coded,
    info: scm_pb2.ContainerInfo,
    client: ClusterClient,
    cluster: Cluster,
    indexes: dict[str, int],
    *,
    look: Callable[[], scm_pb2.ContainerInfo],
    wait_until: WaitUntil,
) -> None:
    """Delete one shard and wait until it is reconstructed; then flip a bit in another shard."""
    lost = holder(info, coded.lost_index)
    request = datanode_pb2.DeleteContainerRequest(container_id=info.container_id, force=True)
    root = lost.replica.tree.root
    client.peer(lost.datanode).stub.DeleteContainer(request)
    wait_until(lambda: read_to_rebuild(client, info.container_id) > 0, "a shard is rebuilt")
    wait_until(lambda: is_complete(coded, look()), "all shards are there again")
    rebuilt = holder(look(), coded.lost_index)
    assert rebuilt.replica.tree.root == root, "what was rebuilt is not what was lost"
    coded.rebuilt_on = rebuilt.datanode.datanode_id
    coded.rebuild_read_bytes = read_to_rebuild(client, info.container_id)
    damaged = holder(look(), DAMAGED_INDEX)
    blocks = client.peer(damaged.datanode).blocks_of(ContainerId(info.container_id))
    largest = max(blocks, key=lambda block: block.length_bytes)
    target = target_of(cluster, indexes, info.container_id, damaged, [largest])
    coded.harm = Harm(damaged.datanode.datanode_id, flip_bit_under_warm_cache(target))


def read_to_rebuild(client: ClusterClient, container_id: int) -> int:
    """Return the bytes that reconstructions of a container read."""
    answer = client.scm.list_outcomes(scm_pb2.ListOutcomesRequest(count=OUTCOMES_LOOKED_AT))
    return sum(
        outcome.status.reconstruct.bytes_read
        for outcome in answer.outcomes
        if outcome.status.container_id == container_id
    )


def prove(
    coded: Coded,
    infos: Sequence[scm_pb2.ContainerInfo],
    client: ClusterClient,
    sources: Sequence[SourceFile],
) -> Iterator[str]:
    """Verify all shards against each other, and read all files back; yield the errors."""
    with ThreadPoolExecutor(SHARDS_MAX) as executor:
        for info in infos:
            report = parity_of(coded, info, client, executor)
            coded.stripes += report.stripe_count
            if not report.is_clean:
                yield f"container {info.container_id}: its shards do not fit together"
    for source in chosen(sources):
        expected = checksum_of(c for piece in pieces_of(source) for c in chunks_of(piece))
        degraded = dict(client.degraded)
        if checksum_of(client.get(source.key)) != expected:
            yield f"{source.key} is not what was stored"
        if client.degraded != degraded:
            yield f"{source.key} was read degraded"


def parity_of(
    coded: Coded, info: scm_pb2.ContainerInfo, client: ClusterClient, executor: ThreadPoolExecutor
) -> ParityReport:
    """Verify the parity of one container."""
    shards = [
        ShardLocation(item.datanode.datanode_id, item.datanode.address, item.replica.replica_index)
        for item in info.replicas
    ]
    container_id = ContainerId(info.container_id)
    return verify_parity(container_id, coded.code, shards, client.peer, executor)


def holder(info: scm_pb2.ContainerInfo, index: int) -> scm_pb2.ContainerInfoReplica:
    """Return the replica of a container that has the shard `index`."""
    return next(item for item in info.replicas if item.replica.replica_index == index)
