"""The stream of a replica as messages (`ImportPart`), made without copying the data twice.

Chunk data dwarfs all else, so the part that carries it is put together from its encoded head and
the bytes themselves: one copy instead of the three that filling and serializing a message costs.
"""

from collections.abc import Sequence
from typing import Final

import zstandard

from agent.errors import Refused
from agent.rpc import codec
from agent.rpc.v1 import datanode_pb2 as pb
from merkle.replica import BlockId

PART_BYTES: Final = 1024**2  # of data in one message: the sweet spot of a gRPC stream
PART_BLOCKS_MAX: Final = 1024
FINDINGS_PER_PART: Final = 500
ZSTD_LEVEL: Final = 1
LENGTH_DELIMITED: Final = 2  # protobuf's wire type of bytes and messages
BLOCKS_TAG: Final = bytes([pb.ImportPart.BLOCKS_FIELD_NUMBER << 3 | LENGTH_DELIMITED])
DATA_TAG: Final = bytes([pb.ImportBlocks.DATA_FIELD_NUMBER << 3 | LENGTH_DELIMITED])


def varint(value: int) -> bytes:
    """Return `value` as protobuf writes it."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def blocks_part(
    local_ids: Sequence[BlockId],
    rows: Sequence[bytes],
    file_bytes: Sequence[int],
    data: memoryview,
    *,
    compress: bool,
) -> bytes:
    """Return an encoded `ImportPart` of blocks. Safe to call in many threads at once."""
    if compress and data:
        data = memoryview(zstandard.compress(data, ZSTD_LEVEL))
    head = pb.ImportBlocks(local_ids=local_ids, rows=rows, file_bytes=file_bytes)
    encoded = head.SerializeToString()
    data_head = DATA_TAG + varint(len(data))
    size_bytes = len(encoded) + len(data_head) + len(data)
    return b"".join([BLOCKS_TAG, varint(size_bytes), encoded, data_head, data])


def data_of(part: pb.ImportBlocks, *, compressed: bool) -> memoryview:
    """Return the data of a part. Raises Refused(MALFORMED_REQUEST), also for data that would
    unpack to more than a part may hold."""
    data = part.data
    if compressed and data:
        try:
            frame = zstandard.get_frame_parameters(data)
            if frame.content_size > PART_BYTES:
                raise codec.malformed("blocks.data", f"unpacks to {frame.content_size} bytes")
            data = zstandard.decompress(data, max_output_size=PART_BYTES)
        except zstandard.ZstdError as error:
            raise codec.malformed("blocks.data", f"is no zstd frame: {error}") from error
    if len(data) > PART_BYTES:
        raise codec.malformed("blocks.data", f"{len(data)} bytes are more than {PART_BYTES}")
    return memoryview(data)


def cut_off() -> Refused:
    """Return the refusal of a stream that ended before its end."""
    return codec.malformed("parts", "the stream ended before its end")
