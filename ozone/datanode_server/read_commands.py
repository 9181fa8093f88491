"""Commands that read blocks: rows in Ozone's format, and bytes as they are on disk.

    GetBlock, ListBlock          rows, in Ozone's format
    GetCommittedBlockLength      the committed length of a block
    ReadChunk                    any range of committed bytes, in one answer
    ReadBlock                    a range as a stream, with the checksums that were written with it

As in Ozone, the reader verifies the data, not the server. The commands do not take the container's
lease.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from time import perf_counter
from typing import Any, Final

import grpc

from agent.store.operations.reading import BlockLocation, damaged_block
from agent.store.replica_store import ReplicaStore
from merkle.blockrow import decode_block
from merkle.checksum import checksum_width_bytes
from merkle.damaged_data import DamagedData
from merkle.replica import (
    BLOCK_BYTES_MAX,
    ID_MAX,
    BlockData,
    ChecksumType,
    ChunkInfo,
)
from ozone.clients.datanode_messages import DatanodeCommand
from ozone.datanode_server.error_translation import StreamAborted
from ozone.datanode_server.messages import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX
from ozone.datanode_server.parsing import parse_block_key, parse_span
from ozone.datanode_server.xceiver_service import Answering, Body, CommandRequest
from ozone.disk.encoding import encode_row
from suture.errors import Code, RefusedError
from suture.wire.mapping import codec

BUFFERED: Final = 1  # readChunkVersion: the client wants one buffer per window
BUFFER_BYTES_MIN: Final = 4 * 1024
PIECE_BYTES: Final = 1024**2  # data per message of a stream, unless requested otherwise
PIECE_BYTES_MAX: Final = 16 * 1024**2
ITEM_BYTES_MAX: Final = 8  # bytes of an answer around each row in it


class ReadCommands:
    """Handlers of GetBlock, ListBlock, GetCommittedBlockLength, ReadChunk and ReadBlock."""

    def __init__(
        self, store: ReplicaStore, *, on_read: Callable[[float], None] = lambda _: None
    ) -> None:
        """Serve reads from `store`.

        `on_read` is called with the duration in seconds of each read of chunk data.
        """
        self._store = store
        self._on_read = on_read
        self.commands: Mapping[DatanodeCommand, Answering] = {
            DatanodeCommand.GET_BLOCK: self._block,
            DatanodeCommand.LIST_BLOCK: self._blocks,
            DatanodeCommand.GET_COMMITTED_BLOCK_LENGTH: self._length,
            DatanodeCommand.READ_CHUNK: self._chunk,
            DatanodeCommand.READ_BLOCK: self._stream,
        }

    # Commands that return rows.

    def _block(self, asked: CommandRequest) -> Body:
        found = self._readable(asked, asked.body.block_id)
        row = encode_row(asked.container_id, found.block, found.replica_index)
        _check_message(f"block {found.block.block_id}", len(row))
        return {"get_block": {"block": row}}

    def _blocks(self, asked: CommandRequest) -> Body:
        """Return the requested number of blocks by ascending id.

        If one of them is damaged, return an error for the complete request. A caller that lists all
        blocks would treat a missing block as deleted.
        """
        wish = asked.body
        if not wish.HasField("count"):
            raise codec.malformed("count", "is not there")
        count = min(wish.count, ID_MAX)
        facts = self._store.replica(asked.container_id)
        rows: list[bytes] = []
        size_bytes = 0
        start = max(wish.start_local_id, 0)
        for block_id, row in islice(self._store.view(asked.container_id).block_rows(start), count):
            try:
                block = decode_block(block_id, row)
            except DamagedData as damage:
                raise damaged_block(asked.container_id, damage) from damage
            rows.append(encode_row(asked.container_id, block, facts.replica_index))
            size_bytes += len(rows[-1]) + ITEM_BYTES_MAX
            _check_message(f"a list of {len(rows)} blocks", size_bytes)
        return {"list_block": {"blocks": rows}}

    def _length(self, asked: CommandRequest) -> Body:
        found = self._readable(asked, asked.body.block_id)
        answer = {"block_id": asked.body.block_id, "length": found.block.length_bytes}
        return {"get_committed_block_length": answer}

    def _readable(self, asked: CommandRequest, named: Any) -> BlockLocation:
        """Return the location of a block.

        Raise RefusedError if the request names a higher commit id than the local one, or another
        shard.
        """
        block_id = parse_block_key(named, asked)
        facts = self._store.replica(asked.container_id)
        if facts.replica_index and named.replica_index not in {0, facts.replica_index}:
            raise RefusedError(
                Code.CONTAINER_NOT_FOUND,
                f"container {asked.container_id} has replica index {facts.replica_index} here, "
                f"not {named.replica_index}",
            )
        if named.bcsid > facts.bcsid:
            raise RefusedError(
                Code.UNKNOWN_BCSID,
                f"container {asked.container_id} is at bcsid {facts.bcsid}, the request is for "
                f"{named.bcsid}",
            )
        found = self._store.view(asked.container_id).readable(block_id)
        if named.bcsid > found.block.bcsid:
            raise RefusedError(
                Code.BCSID_MISMATCH,
                f"block {block_id} is at bcsid {found.block.bcsid}, the request is for "
                f"{named.bcsid}",
            )
        return found

    # Commands that return data.

    def _chunk(self, asked: CommandRequest) -> Body:
        wish = asked.body
        found = self._readable(asked, wish.block_id)
        offset, length_bytes = parse_span(wish.chunk.offset, wish.chunk.length, "chunkData")
        data = self._read(asked, found, offset, length_bytes)
        answer: Body = {"block_id": wish.block_id, "chunk": wish.chunk}
        if wish.version != BUFFERED:
            return {"read_chunk": {**answer, "data": data}}
        step = max(wish.chunk.checksum_data.bytes_per_checksum, BUFFER_BYTES_MIN)
        buffers = [data[at : at + step] for at in range(0, length_bytes, step)]
        return {"read_chunk": {**answer, "buffers": {"buffers": buffers}}}

    def _stream(self, asked: CommandRequest) -> Iterator[Body]:
        """Yield the answers with the requested range of a block.

        The range is extended to complete checksum windows.
        """
        wish = asked.body
        found = self._readable(asked, wish.block_id)
        begin, end = _range_of(found.block, wish)
        piece_bytes = min(wish.answer_bytes or PIECE_BYTES, PIECE_BYTES_MAX)
        for chunk in found.block.chunks:
            if chunk.end <= begin or chunk.offset >= end:
                continue
            for offset, length_bytes in _pieces(chunk, begin, end, bytes_max=piece_bytes):
                data = self._read(asked, found, offset, length_bytes)
                sums = _sums(chunk, offset, length_bytes)
                yield {"read_block": {"checksum_data": sums, "offset": offset, "data": data}}

    def _read(
        self, asked: CommandRequest, found: BlockLocation, offset: int, length_bytes: int
    ) -> bytes:
        begun_s = perf_counter()
        data = self._store.view(asked.container_id).read(found, offset, length_bytes)
        self._on_read(perf_counter() - begun_s)
        return data


def _range_of(block: BlockData, wish: Any) -> tuple[int, int]:
    """Return the start and the end of the requested bytes.

    If the requested length is 0, return all bytes. Raise StreamAborted if the range has no bytes,
    because Ozone's clients expect a gRPC status then.
    """
    if wish.offset >= block.length_bytes:
        raise StreamAborted(
            grpc.StatusCode.OUT_OF_RANGE,
            f"block {block.block_id} has {block.length_bytes} bytes, none at {wish.offset}",
        )
    length_bytes = wish.length or BLOCK_BYTES_MAX
    return wish.offset, min(wish.offset + length_bytes, block.length_bytes)


def _pieces(chunk: ChunkInfo, begin: int, end: int, *, bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length in bytes) of each message for one chunk.

    Each message has complete checksum windows. Together, the messages cover the bytes from `begin`
    to before `end`.
    """
    window_bytes = _window_bytes(chunk)
    first = max(begin - chunk.offset, 0) // window_bytes * window_bytes
    last = -(-(min(end, chunk.end) - chunk.offset) // window_bytes) * window_bytes
    stop = min(last, chunk.length_bytes)
    step_bytes = max(bytes_max // window_bytes, 1) * window_bytes
    for at in range(first, stop, step_bytes):
        yield chunk.offset + at, min(step_bytes, stop - at)


def _window_bytes(chunk: ChunkInfo) -> int:
    """Return the size in bytes of a checksum window, the smallest part that can be verified.

    Return 1 if the chunk has no checksums.
    """
    if chunk.checksum_type is ChecksumType.NONE:
        return 1
    return chunk.bytes_per_checksum


def _sums(chunk: ChunkInfo, offset: int, length_bytes: int) -> Body:
    """Return the checksums of a range of complete windows, as fields of Ozone's message."""
    about: Body = {"type": chunk.checksum_type, "bytes_per_checksum": chunk.bytes_per_checksum}
    if chunk.checksum_type is ChecksumType.NONE:
        return about
    width = checksum_width_bytes(chunk.checksum_type)
    first = (offset - chunk.offset) // chunk.bytes_per_checksum
    count = -(-length_bytes // chunk.bytes_per_checksum)
    data = chunk.window_checksums[first * width : (first + count) * width]
    return {**about, "checksums": [data[at : at + width] for at in range(0, len(data), width)]}


def _check_message(what: str, size_bytes: int) -> None:
    """Raise RefusedError if an answer of this size exceeds the limit of Ozone's messages."""
    if size_bytes > MESSAGE_BYTES_MAX - FRAME_BYTES_MAX:
        raise RefusedError(
            Code.INELIGIBLE,
            f"{what} exceeds the {MESSAGE_BYTES_MAX} bytes of an Ozone message",
            hint="request fewer at once",
        )
