"""Three replicas of one container: two intact ones that are served, and a damaged one on disk."""

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc

from agent.delete_pins import DeletePins
from agent.leases import ContainerLeases
from agent.scan.container_scan import StoreScanDeps, scan_container
from agent.services.limits import DatanodeServerLimits
from agent.services.proof_handlers import ProofHandlers
from agent.services.read_handlers import ReadHandlers
from agent.services.server import build_server
from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from merkle.checksum import window_checksums
from merkle.replica import (
    WINDOW_BYTES_DEFAULT,
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
)
from suture.runtime.clock import SystemClock
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.control.scripted_scm import CLUSTER_ID
from tools.demo.damage import (
    Target,
    append_garbage,
    delete_block_file,
    delete_metadata_row,
    flip_bit_under_warm_cache,
    truncate,
    zero_page,
)

BLOCKS: Final = 12
CHUNKS: Final = 2
CHUNK_BYTES: Final = 20_000
WAYS: Final = {
    1: flip_bit_under_warm_cache,
    2: truncate,
    3: delete_block_file,
    4: delete_metadata_row,
    5: append_garbage,
    6: zero_page,
    7: truncate,
    8: delete_block_file,
    9: delete_metadata_row,
}
"""Block id -> its damage; the other blocks are intact."""


def content(block_id: int, index: int, length_bytes: int) -> bytes:
    """Return the bytes of a chunk, which are the same in every run."""
    return random.Random(f"{block_id}/{index}").randbytes(length_bytes)


def chunk_of(offset: int, data: bytes) -> ChunkInfo:
    """Describe a chunk as a client does."""
    checksums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES_DEFAULT, data)
    return ChunkInfo(offset, len(data), ChecksumType.CRC32C, WINDOW_BYTES_DEFAULT, checksums)


class ThreeReplicas:
    """Two peers that serve an intact replica each, and a volume with a damaged replica."""

    def __init__(self, root: Path, container_id: ContainerId) -> None:
        self.root = root
        self.container_id = container_id
        self._stores: list[ReplicaStore] = []
        self._servers: list[grpc.Server] = []
        self.peers: list[container_pb2.DatanodeEndpoint] = []

    def __enter__(self) -> Self:
        for name in ("peer-a", "peer-b"):
            store = self._open(name)
            self._fill(store)
            limits = DatanodeServerLimits()
            proofs = ProofHandlers(store, lambda *_: (), DeletePins(SystemClock()), SystemClock())
            groups = [ReadHandlers(store, limits=limits), proofs]
            built = build_server(
                groups, "127.0.0.1:0", ThreadPoolExecutor(8), datanode_id=name, limits=limits
            )
            built.server.start()
            self._stores.append(store)
            self._servers.append(built.server)
            self.peers.append(
                container_pb2.DatanodeEndpoint(datanode_id=name, address=f"127.0.0.1:{built.port}")
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.stop(None).wait()
        for store in self._stores:
            store.close()

    def whole_volume(self) -> Path:
        """Create a volume with an intact replica; return its path. No store has it open."""
        store = self._open("whole")
        self._fill(store)
        store.close()
        return self.root / "whole"

    def damaged_volume(self) -> Path:
        """Create a volume whose replica has all damages of `WAYS`, and scan it; return its path."""
        store = self._open("victim")
        self._fill(store)
        root = store.paths(self.container_id).root
        store.close()
        for block_id, damage in WAYS.items():
            chunk_bytes = (CHUNK_BYTES,)
            damage(
                Target(self.container_id, root, (block_id,), chunk_bytes, (CHUNKS * CHUNK_BYTES,))
            )
        store = self._open("victim")
        tools = StoreScanDeps(store=store, leases=ContainerLeases())
        report = scan_container(tools, self.container_id)
        assert report.finding_count >= len(WAYS), "the damage was not found"
        store.close()
        return self.root / "victim"

    def copy(self, template: Path, volume: Path) -> None:
        """Copy a volume into the directory that an agent uses as volume."""
        shutil.copytree(template, volume, dirs_exist_ok=True)

    def reconcile_command(self) -> scm_pb2.Command:
        """Return the command to reconcile with the two peers."""
        return scm_pb2.Command(
            term=1,
            priority=scm_pb2.NORMAL,
            reconcile=scm_pb2.ReconcileCommand(container_id=self.container_id, peers=self.peers),
        )

    def assert_undamaged_blocks(self, peer: Peer) -> None:
        """Assert that the blocks that were intact are unchanged."""
        for block_id in range(1, BLOCKS + 1):
            if block_id not in WAYS:
                self._assert_block(peer, block_id)

    def assert_all_blocks(self, peer: Peer) -> None:
        """Assert that every block is intact."""
        for block_id in range(1, BLOCKS + 1):
            self._assert_block(peer, block_id)

    def _assert_block(self, peer: Peer, block_id: int) -> None:
        for index in range(CHUNKS):
            _, data = peer.read_chunk(self.container_id, BlockId(block_id), index * CHUNK_BYTES)
            assert content(block_id, index, CHUNK_BYTES) == data

    def _open(self, name: str) -> ReplicaStore:
        path = self.root / name
        path.mkdir(parents=True, exist_ok=True)
        return ReplicaStore.open(
            [path],
            cluster_id=CLUSTER_ID,
            datanode_id=name,
            options=StoreOptions(reserve_bytes=0),
        )

    def _fill(self, store: ReplicaStore) -> None:
        store.create_container(self.container_id)
        for block_id in range(1, BLOCKS + 1):
            parts = [content(block_id, index, CHUNK_BYTES) for index in range(CHUNKS)]
            chunks = tuple(chunk_of(i * CHUNK_BYTES, part) for i, part in enumerate(parts))
            for chunk, part in zip(chunks, parts, strict=True):
                store.writer(self.container_id).write_chunk(BlockId(block_id), chunk, part)
            store.writer(self.container_id).put_block(
                BlockData(BlockId(block_id), Bcsid(block_id), chunks)
            )
        store.close_container(self.container_id, bcsid=BLOCKS, force=False)
