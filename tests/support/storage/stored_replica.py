"""A real store with a closed replica of a few blocks, and functions that damage its files.

The functions change the files and rows directly, bypassing the store.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import lmdb

from agent.leases import ContainerLeases
from agent.scan.container_scan import ScanReport, StoreScanDeps, VerdictBreaker, scan_container
from agent.store.options import PACKED_COUNT_MIN, StoreOptions
from agent.store.replica_store import ReplicaStore
from merkle.blockrow import decode_block, encode_block
from merkle.checksum import Algorithm, window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId

CLUSTER, DATANODE = "test-cluster", "dn-1"
CONTAINER = ContainerId(1)
WINDOW_BYTES = 16 * 1024
CHUNK_BYTES = 100_000  # not a multiple of anything
MAP_BYTES = 64 * 1024**2


class StoredReplica:
    """The store of a datanode below `path`. After `create`, container 1 is closed and intact."""

    def __init__(
        self,
        path: Path,
        *,
        algorithm: Algorithm = Algorithm.XXH3_64,
        packed_count_min: int = PACKED_COUNT_MIN,
        reserve_bytes: int = 0,
    ) -> None:
        self.path = path
        self.options = StoreOptions(
            algorithm=algorithm,
            reserve_bytes=reserve_bytes,
            lmdb_map_bytes=MAP_BYTES,
            packed_count_min=packed_count_min,
        )
        self.store = ReplicaStore.open(
            [path], cluster_id=CLUSTER, datanode_id=DATANODE, options=self.options
        )
        self.leases = ContainerLeases()
        self.tools = StoreScanDeps(store=self.store, leases=self.leases, guard=VerdictBreaker())

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    # writing, as a client does

    def create(self, container_id: ContainerId = CONTAINER, blocks: int = 3) -> None:
        """Write a container of `blocks` blocks of two chunks each, and close it."""
        self.store.create_container(container_id)
        for number in range(1, blocks + 1):
            self.put(number, CHUNK_BYTES, CHUNK_BYTES + number, container_id=container_id)
        self.store.close_container(container_id, bcsid=0, force=True)

    def put(
        self,
        block_id: int,
        *lengths_bytes: int,
        container_id: ContainerId = CONTAINER,
        checksum_type: ChecksumType = ChecksumType.CRC32C,
    ) -> BlockData:
        """Write one block of chunks of these lengths."""
        chunks, offset = [], 0
        for length_bytes in lengths_bytes:
            data = noise(length_bytes, block_id * 1_000 + offset)
            sums = window_checksums(checksum_type, WINDOW_BYTES, data)
            chunk = ChunkInfo(offset, length_bytes, checksum_type, WINDOW_BYTES, sums)
            chunks.append(
                self.store.writer(container_id).write_chunk(BlockId(block_id), chunk, data)
            )
            offset += length_bytes
        told = (("key", f"name {block_id}"),)
        block = BlockData(BlockId(block_id), Bcsid(block_id), tuple(chunks), told)
        self.store.writer(container_id).put_block(block)
        return block

    # damaging, as the world does

    def file(self, block_id: int, container_id: ContainerId = CONTAINER) -> Path:
        """Return the path of a block's file."""
        return self.store.paths(container_id).block_file(BlockId(block_id))

    def overwrite(self, block_id: int, at: int, data: bytes) -> None:
        """Overwrite bytes of a block file with a normal write, so that the page cache has the
        damage, too."""
        fd = os.open(self.file(block_id), os.O_RDWR)
        try:
            assert len(data) == os.pwrite(fd, data, at)
        finally:
            os.close(fd)

    def flip(self, block_id: int, at: int) -> None:
        """Flip one bit of a block file."""
        byte = self.file(block_id).read_bytes()[at]
        self.overwrite(block_id, at, bytes([byte ^ 1]))

    def delete_row(self, block_id: int, container_id: ContainerId = CONTAINER) -> None:
        """Remove a block's metadata row, bypassing the store."""
        self._alter_row(block_id, container_id, lambda _: None)

    def lose_index(self) -> None:
        """Remove the index of the volume, and open the store again. The store then loads the
        replicas that have a descriptor."""
        self.store.close()
        shutil.rmtree(self.path / "hdds" / CLUSTER / "db")
        self.reopen()

    def damage_row(self, block_id: int, container_id: ContainerId = CONTAINER) -> None:
        """Flip one bit of a block's metadata row, bypassing the store."""

        def flipped(row: bytes) -> bytes:
            middle = len(row) // 2
            return row[:middle] + bytes([row[middle] ^ 1]) + row[middle + 1 :]

        self._alter_row(block_id, container_id, flipped)

    def rewrite(self, block_id: int, container_id: ContainerId = CONTAINER) -> None:
        """Change the first chunk of a block, and the checksums in its row. The block then has wrong
        bytes that match its row."""

        first, *rest = self.store.view(container_id).block(BlockId(block_id)).chunks
        data = noise(first.length_bytes, 666)
        sums = window_checksums(first.checksum_type, first.bytes_per_checksum, data)
        chunks = (first._replace(window_checksums=sums), *rest)

        def lying(row: bytes) -> bytes:
            return encode_block(replace(decode_block(BlockId(block_id), row), chunks=chunks))

        self._alter_row(block_id, container_id, lying)
        self.overwrite(block_id, first.offset, data)

    def _alter_row(
        self, block_id: int, container_id: ContainerId, alter: Callable[[bytes], bytes | None]
    ) -> None:
        """Replace a block's row by the result of `alter`; None = remove the row. The store is
        closed meanwhile, as if another process changed the index."""
        self.store.close()
        path = self.path / "hdds" / CLUSTER / "db"
        with lmdb.open(str(path), max_dbs=16, map_size=MAP_BYTES) as environment:
            blocks = environment.open_db(b"blocks", create=False)
            key = container_id.to_bytes(8) + block_id.to_bytes(8)
            with environment.begin(db=blocks, write=True) as transaction:
                row = transaction.get(key)
                assert row is not None, "there is no such row to damage"
                altered = alter(bytes(row))
                if altered is None:
                    transaction.delete(key)
                else:
                    transaction.put(key, altered)
        self.reopen()

    def reopen(self) -> None:
        """Open the store again, as after a restart."""
        self.store = ReplicaStore.open(
            [self.path], cluster_id=CLUSTER, datanode_id=DATANODE, options=self.options
        )
        self.tools = StoreScanDeps(
            store=self.store,
            leases=self.leases,
            guard=VerdictBreaker(),
        )

    # scanning

    def scan(self, container_id: ContainerId = CONTAINER) -> ScanReport:
        """Scan a replica as the agent does; return the report."""
        return scan_container(self.tools, container_id)


def noise(length_bytes: int, seed: int) -> bytes:
    """Return pseudo-random bytes, which depend only on the seed and do not occur anywhere else by
    accident."""
    return Random(seed).randbytes(length_bytes)


def opened(path: Path) -> Iterator[StoredReplica]:
    """Yield a store with container 1 closed and intact. Fixtures use this as their body."""
    replica = StoredReplica(path)
    replica.create()
    yield replica
    replica.close()
