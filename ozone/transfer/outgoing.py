"""Exports a replica as Ozone's datanodes send it: an archive, built while it is sent.

    container.yaml - <id>.tree - db/<table>.data ... - chunks/<block>.block ... - end

An Ozone datanode serves an import before it has verified the data. Therefore the sender verifies
every chunk against its row. After a mismatch it ends the stream, and the receiver keeps nothing.
The caller holds a shared lease of the container, so that no chunk is written during the export. A
replica with lost rows is not sent.
"""

import struct
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import zstandard

from agent.store.index.facts import ReplicaFacts
from agent.store.replica_store import ReplicaStore
from agent.transfer.chunk_checks import StreamedChunks
from merkle.replica import CONTAINER_BYTES_MAX, TREE_STATES, BlockId, ContainerId
from ozone.datanode_server.trees import OzoneView, ozone_view
from ozone.disk.database import BLOCKS, DELETES, LAST_CHUNKS, NUMBERS
from ozone.disk.descriptor import OzoneDescriptor, encode_descriptor
from ozone.disk.encoding import encode_row, encode_tree_file
from ozone.disk.rows import BLOCK_COUNT, BYTES_USED, NUMBER, RECORDED_ROOT, SEPARATOR
from ozone.transfer.entries import (
    BLOCK_SUFFIX,
    CHUNKS,
    DESCRIPTOR,
    STEP_BYTES,
    TABLE_SUFFIX,
    TABLES,
    TREE_SUFFIX,
)
from ozone.transfer.messages import Compression
from ozone.transfer.scratch import Scratch
from ozone.transfer.tables import SCHEMA, SEQUENCE, write_table
from suture.errors import Code, RefusedError

DAMAGED: Final = "damage was met while it was sent"  # reason in the request for a scan
ROW_BYTES: Final = 1024  # approximate size of a block's row without window checksums
BYTES_PER_SUM_BYTE: Final = 4096  # Ozone's windows have 16 KiB and 4 bytes of checksum
PLACE: Final = "/suture"  # directory in the descriptor; an importer writes its own


@dataclass(frozen=True, slots=True)
class ArchiveExport:
    """The export of one replica, as an archive for a datanode of Ozone."""

    store: ReplicaStore
    container_id: ContainerId

    def check(self) -> ReplicaFacts:
        """Return the facts of the replica. Raise RefusedError if the replica must not be sent."""
        facts = self.store.replica(self.container_id)
        if facts.state not in TREE_STATES:
            raise RefusedError(
                Code.INVALID_CONTAINER_STATE,
                f"cannot send container {self.container_id}: it is {facts.state}, not closed",
            )
        return facts

    def stream(self, compression: Compression) -> Iterator[bytes]:
        """Return the bytes of the archive, in pieces.

        Raise SutureError if the replica cannot be sent completely.
        """
        check_compression(compression)
        facts = self.check()
        if compression is Compression.ZSTD:
            return _compressed(self._files(facts))
        return self._files(facts)

    def _files(self, facts: ReplicaFacts) -> Iterator[bytes]:
        self._check_rows()
        view = ozone_view(self.store, self.container_id)
        yield from _file(DESCRIPTOR, encode_descriptor(_descriptor(facts), PLACE))
        tree = encode_tree_file(self.container_id, view.tree, view.root)
        yield from _file(f"{self.container_id}{TREE_SUFFIX}", tree)
        with Scratch() as scratch:
            rows_bytes = facts.block_count * ROW_BYTES + facts.used_bytes // BYTES_PER_SUM_BYTE
            path = scratch.reserve(rows_bytes)
            ids = self._write_tables(facts, view, path)
            yield _header(TABLES, 0, tarfile.DIRTYPE)
            for name in (BLOCKS, DELETES, LAST_CHUNKS, NUMBERS):
                yield from _copied(path / f"{name}{TABLE_SUFFIX}")
        yield _header(CHUNKS, 0, tarfile.DIRTYPE)
        for block_id in ids:
            yield from self._block(block_id)
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _check_rows(self) -> None:
        """Raise RefusedError if a block has a file with data, but no record (row) in the database.

        An archive cannot contain such a file.
        """
        for block_id, size_bytes in self.store.view(self.container_id).blocks_without_row().items():
            if size_bytes > 0:
                raise RefusedError(
                    Code.INELIGIBLE,
                    f"block {block_id} has data but no readable row here",
                    hint="suture reconcile restores rows that another replica has",
                    container_id=self.container_id,
                )

    def _write_tables(self, facts: ReplicaFacts, view: OzoneView, scratch: Path) -> list[BlockId]:
        """Write the tables of the archive to the directory `scratch`.

        Return the block ids in the order of their keys, which is the order of their decimal text.
        """
        ids = sorted(
            (block_id for block_id, _ in self.store.view(self.container_id).block_rows()), key=str
        )
        prefix = struct.pack(">Q", self.container_id) + SEPARATOR

        def rows() -> Iterator[tuple[bytes, bytes]]:
            for block_id in ids:
                block = self.store.view(self.container_id).readable(block_id).block
                row = encode_row(self.container_id, block, facts.replica_index)
                yield prefix + str(block_id).encode(), row

        numbers = {
            SEQUENCE: facts.bcsid,
            BLOCK_COUNT: facts.block_count,
            BYTES_USED: facts.used_bytes,
            **({} if view.root is None else {RECORDED_ROOT: view.root}),
        }
        told = ((prefix + name.encode(), NUMBER.pack(one)) for name, one in sorted(numbers.items()))
        write_table(scratch, BLOCKS, rows())
        write_table(scratch, NUMBERS, told)
        for name in (DELETES, LAST_CHUNKS):
            write_table(scratch, name, iter(()))
        return ids

    def _block(self, block_id: BlockId) -> Iterator[bytes]:
        """Yield the file of a block as bytes of the archive.

        Yield nothing if the block is empty.
        """
        found = self.store.view(self.container_id).readable(block_id)
        size_bytes = found.block.length_bytes
        if not size_bytes:
            return
        yield _header(f"{CHUNKS}/{block_id}{BLOCK_SUFFIX}", size_bytes)
        chunks = StreamedChunks(found.block.chunks)
        for at in range(0, size_bytes, STEP_BYTES):
            length_bytes = min(STEP_BYTES, size_bytes - at)
            data = self.store.view(self.container_id).read(found, at, length_bytes)
            chunks.feed(memoryview(data))
            for chunk in chunks.wrong:
                raise RefusedError(
                    Code.CHECKSUM_MISMATCH,
                    f"the chunk at {chunk.offset} of block {block_id} is damaged here",
                    hint="scan the container for details; suture reconcile repairs it",
                    container_id=self.container_id,
                )
            yield data
        yield bytes(-size_bytes % tarfile.BLOCKSIZE)


def check_compression(compression: Compression) -> None:
    """Raise RefusedError if the compression is not supported."""
    if compression not in {Compression.NO_COMPRESSION, Compression.ZSTD}:
        raise RefusedError(
            Code.INELIGIBLE, f"archives compressed with {compression.name} are not supported"
        )


def _descriptor(facts: ReplicaFacts) -> OzoneDescriptor:
    return OzoneDescriptor(
        container_id=facts.container_id,
        state=facts.state,
        replica_index=facts.replica_index,
        schema=SCHEMA,
        origin_node_id=facts.origin_datanode_id,
        origin_pipeline_id="",
        scanned_at_ms=0,
        is_verified=True,
        bytes_max=CONTAINER_BYTES_MAX,
    )


def _header(name: str, size_bytes: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type = size_bytes, kind
    if kind == tarfile.DIRTYPE:
        member.mode = 0o755
    return member.tobuf(tarfile.PAX_FORMAT)


def _file(name: str, data: bytes) -> Iterator[bytes]:
    yield _header(name, len(data)) + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _copied(path: Path) -> Iterator[bytes]:
    size_bytes = path.stat().st_size
    yield _header(f"{TABLES}/{path.name}", size_bytes)
    with path.open("rb") as file:
        while piece := file.read(STEP_BYTES):
            yield piece
    yield bytes(-size_bytes % tarfile.BLOCKSIZE)


def _compressed(data: Iterator[bytes]) -> Iterator[bytes]:
    packing: Any = zstandard.ZstdCompressor().compressobj()
    for piece in data:
        if packed := packing.compress(piece):
            yield packed
    yield packing.flush()
