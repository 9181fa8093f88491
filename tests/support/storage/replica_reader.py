"""A replica in memory that a scan can read, and that can return wrong data, fail or change during a
read.

`MemoryReplica` stands for the disk; tests change its fields to damage it. The wrappers at the end
are between the disk and the scan. They simulate a host whose memory flips bits, or a disk whose
sectors fail.
"""

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from random import Random

import numpy as np

from merkle.blockrow import encode_block
from merkle.checksum import Algorithm, window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from merkle.tree import Tree
from merkle.tree_building import build_from_rows
from scanner.chunk_verdict import WITNESSES, Witnesses
from scanner.ports import BlockFileReader, ReplicaReader, Structure, StructureFault
from scanner.replica_scan import scan_replica
from scanner.scan_outcome import ScanOutcome

NOW_MS = 1_700_000_000_000
WINDOW_BYTES = 4096


def chunk_of(
    data: bytes,
    offset: int = 0,
    *,
    checksum_type: ChecksumType = ChecksumType.CRC32C,
    bytes_per_checksum: int = WINDOW_BYTES,
) -> ChunkInfo:
    """Return the description that a writer of `data` records."""
    sums = window_checksums(checksum_type, bytes_per_checksum, data)
    return ChunkInfo(offset, len(data), checksum_type, bytes_per_checksum, sums)


def noise(length_bytes: int, seed: int = 1) -> bytes:
    """Return pseudo-random bytes, which depend only on the seed and do not occur anywhere else by
    accident."""
    return Random(seed).randbytes(length_bytes)


class MemoryReplica:
    """A replica in memory: rows and files by block id, and the other objects in its directory."""

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}
        self.files: dict[int, bytes] = {}
        self.buried: dict[BlockId, int] = {}
        self.faults: list[StructureFault] = []
        self.expected: set[int] = set()
        self.former: dict[tuple[int, int], list[bytes]] = {}
        self.is_stale = False

    def put(
        self,
        block_id: int,
        *pieces: bytes,
        checksum_type: ChecksumType = ChecksumType.CRC32C,
        bytes_per_checksum: int = WINDOW_BYTES,
    ) -> BlockData:
        """Write a block of one chunk per piece, as a client would."""
        chunks, offset = [], 0
        for piece in pieces:
            chunks.append(
                chunk_of(
                    piece,
                    offset,
                    checksum_type=checksum_type,
                    bytes_per_checksum=bytes_per_checksum,
                )
            )
            offset += len(piece)
        block = BlockData(BlockId(block_id), Bcsid(1), tuple(chunks))
        self.rows[block_id] = encode_block(block)
        if pieces:
            self.files[block_id] = b"".join(pieces)
        self.expected.add(block_id)
        return block

    def damage(self, block_id: int, at: int, new: bytes) -> None:
        """Overwrite bytes of a file without changing its row."""
        data = bytearray(self.files[block_id])
        data[at : at + len(new)] = new
        self.files[block_id] = bytes(data)

    def flip(self, block_id: int, at: int) -> None:
        """Flip one bit of a file."""
        self.damage(block_id, at, bytes([self.files[block_id][at] ^ 0x10]))

    def metadata_tree(self, algorithm: Algorithm = Algorithm.XXH3_64) -> Tree:
        """Return the tree of the written data."""
        return build_from_rows(sorted(self._rows()), self.buried, algorithm=algorithm)

    def _rows(self) -> Iterator[tuple[BlockId, bytes]]:
        return ((BlockId(block_id), row) for block_id, row in self.rows.items())


class MemoryBlock:
    """An open block file of a `MemoryReplica`."""

    def __init__(self, replica: MemoryReplica, block_id: int) -> None:
        self._replica, self._block_id = replica, block_id

    @property
    def size_bytes(self) -> int:
        return len(self._replica.files[self._block_id])

    def read(self, offset: int, length_bytes: int) -> memoryview:
        return memoryview(self.reread_past_cache(offset, length_bytes))

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        return self._replica.files[self._block_id][offset : offset + length_bytes]

    def close(self) -> None:
        pass


class MemoryReader:
    """A reader of a `MemoryReplica` without faults; it counts opened files and reads."""

    def __init__(self, replica: MemoryReplica) -> None:
        self.replica = replica
        self.open_count = 0
        self.closed_count = 0

    @property
    def container_id(self) -> ContainerId:
        return ContainerId(7)

    def blocks(self) -> Iterator[tuple[BlockId, bytes]]:
        for block_id in sorted(self.replica.rows):
            row = self.replica.rows.get(block_id)
            if row is not None:
                yield BlockId(block_id), row

    def row(self, block_id: BlockId) -> bytes | None:
        return self.replica.rows.get(block_id)

    def tombstones(self) -> Mapping[BlockId, int]:
        return self.replica.buried

    def open_block(self, block_id: BlockId) -> BlockFileReader:
        if block_id not in self.replica.files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.open_count += 1
        return MemoryBlock(self.replica, block_id)

    def read_whole(self, block_id: BlockId, length_bytes: int) -> memoryview:
        file = self.open_block(block_id)
        try:
            return file.read(0, length_bytes + 1)
        finally:
            file.close()

    def former_bytes(self, block_id: BlockId, offset: int) -> list[bytes]:
        return self.replica.former.get((block_id, offset), [])

    def structure(self) -> Structure:
        return Structure(
            tuple(self.replica.faults),
            np.array(sorted(self.replica.files), dtype=np.uint64),
            np.array(sorted(self.replica.expected), dtype=np.uint64),
        )

    def is_current(self) -> bool:
        return not self.replica.is_stale


Alter = Callable[[bytes], bytes]


class AlteredBlock:
    """A file whose reads are altered, or fail, before the scan gets them."""

    def __init__(self, block: BlockFileReader, first: Alter, again: Alter) -> None:
        self._block, self._first, self._again = block, first, again

    @property
    def size_bytes(self) -> int:
        return self._block.size_bytes

    def read(self, offset: int, length_bytes: int) -> memoryview:
        return memoryview(self._first(bytes(self._block.read(offset, length_bytes))))

    def reread_past_cache(self, offset: int, length_bytes: int) -> bytes:
        return self._again(bytes(self._block.reread_past_cache(offset, length_bytes)))

    def close(self) -> None:
        self._block.close()


class AlteredReader(MemoryReader):
    """A reader whose first reads and re-reads pass through `first` and `again`."""

    def __init__(self, replica: MemoryReplica, first: Alter, again: Alter = bytes) -> None:
        super().__init__(replica)
        self._first, self._again = first, again

    def open_block(self, block_id: BlockId) -> BlockFileReader:
        return AlteredBlock(super().open_block(block_id), self._first, self._again)


def failing(number: int, times: int = 1_000_000) -> Alter:
    """Return a read function that raises OSError(number) on its first `times` calls."""
    left = [times]

    def read(data: bytes) -> bytes:
        if left[0] > 0:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return data

    return read


def flipping(seed: int, share: float = 1.0) -> Alter:
    """Return a read function that flips one random bit of the data, in a `share` of the reads."""
    random = Random(seed)

    def read(data: bytes) -> bytes:
        if not data or random.random() >= share:
            return data
        flipped = bytearray(data)
        flipped[random.randrange(len(data))] ^= 1 << random.randrange(8)
        return bytes(flipped)

    return read


def scan(
    reader: ReplicaReader,
    *,
    algorithm: Algorithm = Algorithm.XXH3_64,
    witnesses: Witnesses = WITNESSES,
    stop: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda _: None,
) -> ScanOutcome:
    """Scan a replica, with defaults for the arguments that a test does not set."""
    return scan_replica(
        reader,
        algorithm=algorithm,
        now_ms=lambda: NOW_MS,
        stop=stop,
        progress=progress,
        pace=lambda _: None,
        witnesses=witnesses,
    )
