"""An erasure-coded container with each shard on its own datanode, all in one process, with real
stores and servers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agent.host.recovering_replicas import RecoveringReplicas
from agent.plan.reconcile_outcome import ReconcileResult
from agent.reconstruct.coordinator import Needed, ReconstructionCoordinator
from agent.reconstruct.parity_check import ParityReport, verify_parity
from agent.reconstruct.shard_repair import LEASE_TIMEOUT_S, ShardRepairer
from agent.services.read_handlers import ReadHandlers
from agent.store.replica_store import ReplicaStore
from merkle.checksum import window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from suture.ec.blockgroup import group_metadata, stripe_checksum, stripe_metadata
from suture.ec.rebuild_task import RebuildTask, Reconstruction, ShardLocation
from suture.ec.scheme import Scheme
from suture.runtime.clock import SystemClock
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.peer import Peer
from tests.support.storage.datanodes import QUICK, Datanode
from tests.support.storage.ec_groups import EncodedGroup, encoded_group

CONTAINER = ContainerId(5)
WINDOW_BYTES = 1024
RECOVERING_TIMEOUT_S = 300.0
SLOW_S = 0.5
PATIENCE_S = 60.0  # long enough that no source counts as slow on a busy machine


def described(offset: int, data: bytes) -> ChunkInfo:
    """Return a cell's chunk as a writer describes it."""
    sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, data)
    return ChunkInfo(offset, len(data), ChecksumType.CRC32C, WINDOW_BYTES, sums)


def shard_block(made: EncodedGroup, block_id: int, index: int, *, recorded: bool) -> BlockData:
    """Return the row of a block group's block in one shard. With `recorded`, the first shard and
    the parity shards also have the checksums of stripes."""
    scheme = made.group.scheme
    stripes = [
        {i: described(stripe * scheme.cell_bytes, cell) for i, cell in cells.items() if cell}
        for stripe, cells in enumerate(made.stripes)
    ]
    metadata = group_metadata((("key", f"file{block_id}"),), made.group)
    if recorded and (index == 1 or scheme.is_parity(index)):
        metadata += stripe_metadata([stripe_checksum([s[i] for i in sorted(s)]) for s in stripes])
    chunks = tuple(stripe[index] for stripe in stripes if index in stripe)
    return BlockData(BlockId(block_id), Bcsid(block_id), chunks, metadata)


def write_shard(
    store: ReplicaStore,
    index: int,
    groups: Mapping[int, EncodedGroup],
    *,
    recorded: bool = True,
    container_id: ContainerId = CONTAINER,
    last_bcsid: int = 0,
) -> None:
    """Write one shard of each group as a client does, and close the replica at `last_bcsid`. If the
    shard has fewer commits, it becomes QUASI_CLOSED. If `last_bcsid` is 0, closing is forced."""
    store.create_container(container_id, replica_index=index)
    for block_id, made in groups.items():
        block = shard_block(made, block_id, index, recorded=recorded)
        for chunk in block.chunks:
            cell = made.stripes[chunk.offset // made.group.scheme.cell_bytes][index]
            store.writer(container_id).write_chunk(block.block_id, chunk, cell)
        store.writer(container_id).put_block(block)
    store.close_container(container_id, bcsid=last_bcsid, force=not last_bcsid)


def groups_of(scheme: Scheme, lengths_bytes: Iterable[int]) -> dict[int, EncodedGroup]:
    """Return groups of these lengths, by block id."""
    return {
        block_id: encoded_group(scheme, length_bytes, seed=block_id)
        for block_id, length_bytes in enumerate(lengths_bytes, start=1)
    }


class RecoveringDatanode(Datanode):
    """A datanode that accepts the writes of reconstructions. It counts the requested scans."""

    def __init__(self, datanode_id: str, path: Path) -> None:
        super().__init__(datanode_id, path)
        self.scans_asked: list[int] = []
        self.recoveries = RecoveringReplicas(
            self.replica.store,
            self.replica.leases,
            SystemClock(),
            timeout_s=RECOVERING_TIMEOUT_S,
            scan=self.scans_asked.append,
        )

    @property
    def store(self) -> ReplicaStore:
        """The store of the datanode."""
        return self.replica.store


class EcCluster:
    """Datanodes 1..n have the shards of container 5; `spare` further datanodes have none."""

    def __init__(
        self,
        path: Path,
        scheme: Scheme,
        lengths_bytes: Sequence[int],
        *,
        spare: int = 1,
        recorded: bool = True,
        instead: Mapping[int, Mapping[int, EncodedGroup]] = MappingProxyType({}),
    ) -> None:
        """Create all datanodes, and write the shards. `instead` has groups by index: the shard of
        such an index is written from these groups, so that it has other bytes."""
        path.mkdir(parents=True, exist_ok=True)
        self.scheme = scheme
        self.groups = groups_of(scheme, lengths_bytes)
        self.nodes: dict[int, RecoveringDatanode] = {}
        for index in range(1, scheme.shard_count + spare + 1):
            self.nodes[index] = RecoveringDatanode(f"dn-{index}", path / f"dn{index}")
            if index in scheme.indexes:
                groups = instead.get(index, self.groups)
                write_shard(self.nodes[index].store, index, groups, recorded=recorded)
        self.executor = ThreadPoolExecutor(32)
        self._peers: dict[str, Peer] = {}

    def serve(self, **reading: Callable[[Datanode], ReadHandlers]) -> None:
        """Start all servers. An argument such as `dn3=...` replaces the handlers that read replicas
        on datanode 3."""
        for index, node in self.nodes.items():
            node.serve(reading.get(f"dn{index}"), recoveries=node.recoveries)

    def close(self) -> None:
        """Stop the servers, and close the connections and the stores."""
        self.executor.shutdown()
        for peer in self._peers.values():
            peer.close()
        for node in self.nodes.values():
            node.close()

    def peer(self, datanode: NodeAddress) -> Peer:
        """Return the connection to a datanode. It is opened on the first call."""
        fresh = Peer(datanode.address, datanode_id=datanode.datanode_id, timeouts=QUICK)
        return self._peers.setdefault(datanode.address, fresh)

    def shard(self, node: int, index: int) -> ShardLocation:
        """Return the location of the shard `index` on datanode `node`."""
        datanode = self.nodes[node]
        return ShardLocation(datanode.datanode_id, datanode.address, index)

    def order(self, lost: Sequence[int], *, sources: Iterable[int] = ()) -> RebuildTask:
        """Return the task to reconstruct the shards `lost` on the spare datanodes, from the indexes
        `sources`, or from all other shards."""
        left = list(sources) or [index for index in self.scheme.indexes if index not in lost]
        spares = range(self.scheme.shard_count + 1, len(self.nodes) + 1)
        return RebuildTask(
            CONTAINER,
            self.scheme,
            tuple(self.shard(index, index) for index in left),
            tuple(self.shard(node, index) for node, index in zip(spares, lost, strict=False)),
        )

    def reconstruct(
        self,
        order: RebuildTask,
        *,
        pace: Callable[[int], None] = lambda _: None,
        stop: Callable[[], bool] = lambda: False,
        needed: Needed | None = None,
        slow_s: float = PATIENCE_S,
    ) -> Reconstruction:
        """Run a reconstruction task; return its result."""
        coordinator = ReconstructionCoordinator(
            self.executor,
            self.peer,
            now_ms=SystemClock().now_ms,
            pace=pace,
            needed=needed,
            slow_s=slow_s,
        )
        return coordinator.reconstruct(order, stop=stop)

    def mend(
        self,
        index: int,
        peers: Iterable[int],
        *,
        stop: Callable[[], bool] = lambda: False,
        lease_timeout_s: float = LEASE_TIMEOUT_S,
        is_scanned: bool = False,
        scan: Callable[[ContainerId], object] | None = None,
    ) -> ReconcileResult:
        """Scan one shard, unless `is_scanned`, and repair it from the shards on `peers`. `scan`
        replaces the real scan after the repair."""
        node = self.nodes[index]
        if not is_scanned:
            node.scan(CONTAINER)
        mender = ShardRepairer(
            node.store,
            node.replica.leases,
            self.executor,
            scan=scan or node.scan,
            now_ms=SystemClock().now_ms,
            lease_timeout_s=lease_timeout_s,
        )
        others = {self.nodes[peer].datanode_id: self.peer(self.nodes[peer]) for peer in peers}
        return mender.repair(CONTAINER, self.scheme, others, stop=stop)

    def verify_parity(self) -> ParityReport:
        """Verify the parity of the container; return the report."""
        shards = [self.shard(index, index) for index in self.scheme.indexes]
        return verify_parity(CONTAINER, self.scheme, shards, self.peer, self.executor)

    def assert_shard(self, node: int, index: int) -> None:
        """Assert that a datanode has a closed shard, exactly as its writer made it."""
        store = self.nodes[node].store
        facts = store.replica(CONTAINER)
        assert ("CLOSED", index) == (facts.state.value, facts.replica_index)
        for block_id, made in self.groups.items():
            expected = shard_block(made, block_id, index, recorded=True)
            found = store.view(CONTAINER).block(BlockId(block_id))
            assert expected.chunks == found.chunks
            assert dict(expected.metadata) == dict(found.metadata)
            if found.chunks:
                data = store.view(CONTAINER).read(BlockId(block_id), 0, found.length_bytes)
                assert b"".join(cells[index] for cells in made.stripes) == data
        assert (
            self.nodes[index].store.view(CONTAINER).tree().root == store.view(CONTAINER).tree().root
        )


@contextmanager
def ec_cluster(
    path: Path, scheme: Scheme, lengths_bytes: Sequence[int], **options: Any
) -> Iterator[EcCluster]:
    """Yield a cluster; the caller starts its servers."""
    cluster = EcCluster(path, scheme, lengths_bytes, **options)
    try:
        yield cluster
    finally:
        cluster.close()


def altered(made: EncodedGroup, stripe: int, index: int) -> EncodedGroup:
    """Return the group with one octet of one cell changed."""
    stripes = [dict(cells) for cells in made.stripes]
    cell = stripes[stripe][index]
    stripes[stripe][index] = bytes([cell[0] ^ 1]) + cell[1:]
    return EncodedGroup(made.group, made.data, tuple(stripes))


def flip(node: RecoveringDatanode, block_id: int, at: int) -> None:
    """Flip one bit of a block file."""
    path = node.store.paths(CONTAINER).block_file(BlockId(block_id))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def wrong_shard(scheme: Scheme) -> dict[int, dict[int, EncodedGroup]]:
    """Return an `instead` argument of `EcCluster`: shard 3 has a wrong byte in its second stripe,
    with matching checksums."""
    made = groups_of(scheme, [50_000])[1]
    return {3: {1: altered(made, 1, 3)}}
