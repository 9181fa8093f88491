"""Encoding and decoding of the messages by which a replica is sent (`ImportPart`).

Most bytes of the stream are chunk data, and protobuf copies a field of bytes twice in the sender
and twice in the receiver. Therefore, this module builds a message with data from its encoded fields
and the data. The data is the first field, so that the receiver finds it without parsing the other
fields. The result is an ordinary `ImportPart`. If a message has another order of fields, protobuf
decodes it.

Data that is read directly from a disk is not copied at all. The message is created with a hole,
which is an empty range for the data. A field of padding aligns the hole to a page of memory:

    tag, size ─ padding ─ tag, size ─ DATA ─ ids, rows, sizes ─ rest of the padding
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agent.store.files.blockfile import ALIGNMENT_BYTES
from merkle.replica import BlockId
from suture.errors import RefusedError
from suture.wire.mapping import codec
from suture.wire.mapping.varint import field_tag, read_varint, varint
from suture.wire.v1 import datanode_pb2 as pb

PART_BYTES: Final = 1024**2  # data per message; the best size for a gRPC stream
PART_BLOCKS_MAX: Final = 1024
FINDINGS_PER_PART: Final = 500
BLOCKS_TAG: Final = field_tag(pb.ImportPart.BLOCKS_FIELD_NUMBER)
DATA_TAG: Final = field_tag(pb.ImportBlocks.DATA_FIELD_NUMBER)
PADDING_TAG: Final = field_tag(pb.ImportBlocks.PADDING_FIELD_NUMBER)
PADDING_BYTES: Final = ALIGNMENT_BYTES  # total of both paddings
PADDING_HEAD_BYTES: Final = 3
WRITABLE: Final = 0x200  # PyBUF_WRITE of the C API

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype = ctypes.py_object
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_place_of = ctypes.pythonapi.PyBytes_AsString
_place_of.restype = ctypes.c_void_p
_place_of.argtypes = [ctypes.py_object]
_view_of = ctypes.pythonapi.PyMemoryView_FromMemory
_view_of.restype = ctypes.py_object
_view_of.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]


def blocks_part(
    local_ids: Sequence[BlockId],
    rows: Sequence[bytes],
    file_bytes: Sequence[int],
    *data: memoryview,
) -> bytes:
    """Return an encoded `ImportPart` with several blocks and their data, concatenated.
    Thread-safe."""
    data_bytes = sum(map(len, data))
    encoded = _about(local_ids, rows, file_bytes)
    data_head = DATA_TAG + varint(data_bytes)
    size_bytes = len(encoded) + len(data_head) + data_bytes
    return b"".join([BLOCKS_TAG, varint(size_bytes), data_head, *data, encoded])


def part_with_hole(
    local_ids: Sequence[BlockId], rows: Sequence[bytes], file_bytes: Sequence[int], data_bytes: int
) -> tuple[bytes, memoryview]:
    """Return an encoded `ImportPart` without its data, and a view of the range for the data.

    The range has `data_bytes` bytes, and is aligned to a page as O_DIRECT requires. The caller must
    fill the range before other code uses the message. The view does not keep the message alive, so
    the caller must keep a reference to both.
    """
    encoded = _about(local_ids, rows, file_bytes)
    data_head = DATA_TAG + varint(data_bytes)
    inner = 2 * PADDING_HEAD_BYTES + PADDING_BYTES + len(data_head) + data_bytes + len(encoded)
    head = BLOCKS_TAG + varint(inner)
    # The C API allows a new bytes object to be filled before other code uses it.
    part: bytes = _new_bytes(None, len(head) + inner)
    address = _place_of(part)
    view: memoryview = _view_of(address, len(part), WRITABLE)
    before = len(head) + PADDING_HEAD_BYTES + len(data_head)
    in_front = -(address + before) % PADDING_BYTES
    start = before + in_front
    end = start + data_bytes
    view[:start] = b"".join([head, _padding(in_front), data_head])
    view[end:] = encoded + _padding(PADDING_BYTES - in_front)
    return part, view[start:end]


def _about(local_ids: Sequence[BlockId], rows: Sequence[bytes], file_bytes: Sequence[int]) -> bytes:
    """Return the encoded ids, rows and sizes of blocks, without the data of the blocks."""
    message = pb.ImportBlocks(local_ids=local_ids, rows=rows, file_bytes=file_bytes)
    return message.SerializeToString()


def _padding(size_bytes: int) -> bytes:
    """Return an encoded field of padding with `size_bytes` zeros.

    The header of the field has the same length for all values of `size_bytes`.
    """
    return PADDING_TAG + bytes([size_bytes & 0x7F | 0x80, size_bytes >> 7]) + bytes(size_bytes)


@dataclass(frozen=True, slots=True)
class ImportMessage:
    """A received message. `data` is the data of its blocks, which is not part of `message`."""

    message: pb.ImportPart
    data: memoryview

    @property
    def kind(self) -> str:
        """Name of the field that is set; "" if no field is set."""
        return self.message.WhichOneof("part") or ""


def read_part(encoded: bytes) -> ImportMessage:
    """Decode a message of the stream. Raise protobuf's DecodeError if the message is invalid."""
    view = memoryview(encoded)
    if encoded[:1] == BLOCKS_TAG:
        size_bytes, start = read_varint(view, 1)
        if start + size_bytes == len(view):
            if encoded[start : start + 1] == PADDING_TAG:
                padding_bytes, start = read_varint(view, start + 1)
                start += padding_bytes
            if encoded[start : start + 1] == DATA_TAG:
                data_bytes, start = read_varint(view, start + 1)
                end = start + data_bytes
                if end <= len(view):
                    rest = pb.ImportBlocks.FromString(encoded[end:])
                    if not rest.data:  # if a field occurs twice, protobuf uses the last one
                        return ImportMessage(pb.ImportPart(blocks=rest), view[start:end])
    message = pb.ImportPart.FromString(encoded)
    return ImportMessage(message, memoryview(message.blocks.data))


def cut_off() -> RefusedError:
    """Return the error for a stream that ends without its last message."""
    return codec.malformed("parts", "the stream ended before its end")
