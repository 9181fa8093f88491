"""Verifies received blocks before they are used.

Each function raises RefusedError(CHECKSUM_MISMATCH) if the data does not match the checksums in the
same response. It raises RefusedError(MALFORMED_REQUEST) if the messages of a response are
inconsistent.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import chain
from typing import Final

from merkle.checksum import (
    checksum_width_bytes,
    fits,
    window_count,
)
from merkle.replica import BlockId, ChecksumType, ChunkInfo
from suture.errors import Code, RefusedError
from suture.wire.mapping import codec
from suture.wire.mapping.blockpieces import BlockPiece, Data
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb

SMALL_BYTES_MAX: Final = 1024**2  # maximum bytes of a block that datanodes send in one message


def assemble_chunk(pieces: Iterator[pb.ReadChunkResponse], offset: int) -> tuple[ChunkInfo, bytes]:
    """Return the chunk at `offset` and its data, after a check of the length and the checksums."""
    first = next(pieces, None)
    if first is None or not first.HasField("chunk"):
        raise codec.malformed("answer", "does not begin with the chunk")
    chunk = codec.parse_chunk(first.chunk, "answer.chunk")
    if chunk.offset != offset:
        raise codec.malformed("answer.chunk.offset", f"{chunk.offset}, {offset} was asked for")
    parts: list[bytes] = []
    received_bytes = 0
    for piece in chain([first], pieces):
        received_bytes += len(piece.data)
        if received_bytes > chunk.length_bytes:
            raise codec.malformed("answer.data", f"more than {chunk.length_bytes} bytes")
        parts.append(piece.data)
    if received_bytes != chunk.length_bytes:
        raise codec.malformed("answer.data", f"{received_bytes} of {chunk.length_bytes} bytes")
    data = b"".join(parts)
    _verify(chunk, data, each=True)
    return chunk, data


def parse_chunks(
    answer: pb.ReadChunksResponse, asked: Collection[tuple[BlockId, int]]
) -> dict[tuple[BlockId, int], tuple[ChunkInfo, bytes]]:
    """Return the requested chunks whose data matches their checksums, by (block id, offset). The
    caller requests the missing chunks one by one, to get their errors."""
    found: dict[tuple[BlockId, int], tuple[ChunkInfo, bytes]] = {}
    for served in answer.chunks:
        with suppress(RefusedError):
            chunk = codec.parse_chunk(served.chunk, "answer.chunks.chunk")
            key = BlockId(served.local_id), chunk.offset
            if key in asked and len(served.data) == chunk.length_bytes:
                _verify(chunk, served.data, each=True)
                found[key] = chunk, served.data
    return found


def parts_of(answer: pb.GetSmallFileResponse, end: int) -> Iterator[tuple[int, Data]]:
    """Yield (offset, data) for each verified chunk in one message that has all chunks. No chunk
    extends beyond `end`."""
    chunks, expected_bytes = [], 0
    for item in answer.chunks:
        chunk = _due(item, end)
        chunks.append(chunk)
        expected_bytes += chunk.length_bytes
    data = answer.data
    if expected_bytes != len(data):
        raise codec.malformed("answer.data", f"{len(data)} of {expected_bytes} bytes")
    start = 0
    for chunk in chunks:
        part = data if len(chunks) == 1 else data[start : start + chunk.length_bytes]
        _verify(chunk, part)
        yield chunk.offset, part
        start += chunk.length_bytes


def parts_as_they_come(answers: Iterator[BlockPiece], end: int) -> Iterator[tuple[int, Data]]:
    """Yield (offset, data) of a stream, as soon as complete windows of a chunk have arrived and are
    verified. No chunk extends beyond `end`."""
    chunk: ChunkInfo | None = None
    waiting: list[Data] = []  # data of an incomplete window
    at, waiting_bytes = 0, 0  # offset and size of the waiting data
    for answer in answers:
        if answer.chunk is not None:
            if chunk is not None and at < chunk.end:
                raise codec.malformed("answer.data", f"{chunk.end - at} bytes are missing")
            chunk = _due(answer.chunk, end)
            if chunk.offset < at:
                raise codec.malformed("answer.chunk.offset", f"{chunk.offset} after {at}")
            at = chunk.offset
        left_bytes = 0 if chunk is None else chunk.end - at - waiting_bytes
        if chunk is None or not 0 < len(answer.data) <= left_bytes:
            raise codec.malformed(
                "answer.data", f"{len(answer.data)} bytes, at most {left_bytes} are due"
            )
        waiting.append(answer.data)
        waiting_bytes += len(answer.data)
        window_bytes = max(chunk.bytes_per_checksum, 1)
        if (at + waiting_bytes - chunk.offset) % window_bytes and waiting_bytes < chunk.end - at:
            continue
        part = waiting[0] if len(waiting) == 1 else b"".join(waiting)
        _verify(chunk, part, at - chunk.offset)
        yield at, part
        at += waiting_bytes
        waiting, waiting_bytes = [], 0
    if chunk is not None and at < chunk.end:
        raise codec.malformed("answer.data", f"{chunk.end - at} bytes are missing")


def _due(message: container_pb2.ChunkInfo, end: int) -> ChunkInfo:
    """Convert the message of a chunk. Raise RefusedError if the chunk extends beyond the block's
    end."""
    chunk = codec.parse_chunk(message, "answer.chunk")
    if chunk.end > end:
        raise RefusedError(
            Code.UNABLE_TO_FIND_CHUNK,
            f"sent a chunk of bytes {chunk.offset} to {chunk.end} of a block of {end}",
        )
    return chunk


def _verify(chunk: ChunkInfo, data: Data, start: int = 0, *, each: bool = False) -> None:
    """Raise RefusedError if the data of a chunk does not match its checksums.

    `data` begins at the window at `start`. By default, many windows are compared at once, as in
    scans (ADR 0011). If `each` is True, each window is compared, for data that will be written.
    """
    if chunk.checksum_type is ChecksumType.NONE:
        return
    if len(data) != chunk.length_bytes:
        width_bytes = checksum_width_bytes(chunk.checksum_type)
        first = start // chunk.bytes_per_checksum * width_bytes
        last = first + window_count(len(data), chunk.bytes_per_checksum) * width_bytes
        sums = chunk.window_checksums[first:last]
        chunk = chunk._replace(length_bytes=len(data), window_checksums=sums)
    if not fits(chunk, data, each=each):
        raise RefusedError(
            Code.CHECKSUM_MISMATCH,
            f"chunk at {chunk.offset}: the data does not match the checksums sent with it",
            hint="scan the replica of the peer; its disk or memory is damaged",
            offset=chunk.offset,
        )
