"""The stream of a replica as messages (`ImportPart`), made without copying the data twice.

Chunk data dwarfs all else, and protobuf copies a field of bytes twice at either end. So the part
that carries data is put together from its encoded head and the bytes themselves, the data in front,
where the receiver finds it without a look at the rest. It is an ordinary `ImportPart` all the same,
and a part whose fields come in another order is read the ordinary way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
VARINT_BYTES_MAX: Final = 5  # more than any message's size needs
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
    *data: memoryview,
    compress: bool,
) -> bytes:
    """Return an encoded `ImportPart` of blocks, with `data` one behind the other. Safe to call in
    many threads at once."""
    data_bytes = sum(map(len, data))
    if compress and data_bytes:
        data = (memoryview(zstandard.compress(b"".join(data), ZSTD_LEVEL)),)
        data_bytes = len(data[0])
    head = pb.ImportBlocks(local_ids=local_ids, rows=rows, file_bytes=file_bytes)
    encoded = head.SerializeToString()
    data_head = DATA_TAG + varint(data_bytes)
    size_bytes = len(encoded) + len(data_head) + data_bytes
    return b"".join([BLOCKS_TAG, varint(size_bytes), data_head, *data, encoded])


@dataclass(frozen=True, slots=True)
class Part:
    """One received message; `data` is that of its blocks, and not in `message`."""

    message: pb.ImportPart
    data: memoryview

    @property
    def kind(self) -> str:
        """The name of the field that is set, "" for none."""
        return self.message.WhichOneof("part") or ""


def read_part(encoded: bytes) -> Part:
    """Decode a message. Raises protobuf's DecodeError, as its own decoder does."""
    view = memoryview(encoded)
    if encoded[:1] == BLOCKS_TAG:
        size_bytes, start = read_varint(view, 1)
        if start + size_bytes == len(view) and encoded[start : start + 1] == DATA_TAG:
            data_bytes, start = read_varint(view, start + 1)
            if start + data_bytes <= len(view):
                rest = pb.ImportBlocks.FromString(encoded[start + data_bytes :])
                if not rest.data:  # given twice, the last one counts
                    data = view[start : start + data_bytes]
                    return Part(pb.ImportPart(blocks=rest), data)
    message = pb.ImportPart.FromString(encoded)
    return Part(message, memoryview(message.blocks.data))


def read_varint(view: memoryview, start: int) -> tuple[int, int]:
    """Return a number as protobuf writes it, and where it ends; a size no message has if it does
    not end."""
    value = 0
    for index, octet in enumerate(view[start : start + VARINT_BYTES_MAX]):
        value |= (octet & 0x7F) << 7 * index
        if octet < 0x80:
            return value, start + index + 1
    return len(view), start


def unpacked(data: memoryview, *, compressed: bool) -> memoryview:
    """Return the data of a part. Raises Refused(MALFORMED_REQUEST), also for data that would
    unpack to more than a part may hold."""
    if compressed and data:
        try:
            frame = zstandard.get_frame_parameters(data)
            if frame.content_size > PART_BYTES:
                raise codec.malformed("blocks.data", f"unpacks to {frame.content_size} bytes")
            data = memoryview(zstandard.decompress(data, max_output_size=PART_BYTES))
        except zstandard.ZstdError as error:
            raise codec.malformed("blocks.data", f"is no zstd frame: {error}") from error
    if len(data) > PART_BYTES:
        raise codec.malformed("blocks.data", f"{len(data)} bytes are more than {PART_BYTES}")
    return data


def cut_off() -> Refused:
    """Return the refusal of a stream that ended before its end."""
    return codec.malformed("parts", "the stream ended before its end")
