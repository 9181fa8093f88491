"""Validates the parameters of Ozone's clients: ids, byte ranges, and blocks with chunks.

Every parameter is converted to a value that satisfies the rules of `merkle.replica`. An invalid
parameter is rejected with the name of its field.
"""

from typing import Any, Final

from merkle.damaged_data import DamagedData
from merkle.replica import (
    BLOCK_BYTES_MAX,
    CHUNKS_PER_BLOCK_MAX,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
)
from ozone.datanode_server.xceiver_service import CommandRequest
from ozone.disk.blockrow import INCREMENTAL, decode_chunk
from ozone.disk.encoding import decode_noted
from ozone.disk.unsupported_format import UnsupportedFormat
from suture.errors import Code, RefusedError
from suture.wire.mapping import codec
from suture.wire.v1 import container_pb2

READ_BYTES_MAX: Final = 32 * 1024**2  # Ozone's own limit of one ReadChunk


def parse_block_key(message: Any, asked: CommandRequest) -> BlockId:
    """Return the block id in a request. Raise RefusedError if the key of the block is invalid."""
    codec.parse_container_id(asked.container_id)
    if message.container_id != asked.container_id:
        raise codec.malformed(
            "blockID.containerID",
            f"{message.container_id}, but the request is for container {asked.container_id}",
        )
    codec.parse_replica_index(message.replica_index, "blockID.replicaIndex")
    return codec.parse_block_id(message.local_id, "blockID.localID")


def parse_span(offset: int, length_bytes: int, where: str) -> tuple[int, int]:
    """Return the requested range as (offset, length in bytes).

    Raise RefusedError if the range is invalid or too large for one message.
    """
    if length_bytes > READ_BYTES_MAX:
        raise RefusedError(
            Code.INELIGIBLE,
            f"{where}: cannot send {length_bytes} bytes at once: the maximum is {READ_BYTES_MAX}",
            hint="request fewer bytes, or use ReadBlock",
        )
    codec.parse_int(length_bytes, f"{where}.len", low=1, high=READ_BYTES_MAX)
    codec.parse_int(offset, f"{where}.offset", low=0, high=BLOCK_BYTES_MAX - length_bytes)
    return offset, length_bytes


def parse_written_chunk(message: Any, block_id: BlockId, where: str) -> ChunkInfo:
    """Return the description of a chunk that a client writes.

    The store verifies the checksums later. Raise RefusedError if the description is invalid.
    """
    kind = message.checksum_data.type
    if message.checksum_data.HasField("type") and kind not in set(ChecksumType):
        raise RefusedError(Code.NO_SUCH_ALGORITHM, f"{where}: checksum type {kind} is unknown")
    try:
        return decode_chunk(block_id, message)
    except (DamagedData, UnsupportedFormat) as error:
        raise codec.malformed(where, str(error)) from error


def parse_commit(message: Any, container_id: ContainerId, where: str) -> BlockData:
    """Return the block that a client commits. Its metadata includes the stripe checksums.

    Chunks without bytes, which Ozone allows, are omitted. Raise RefusedError if the block is
    invalid.
    """
    if len(message.chunks) > CHUNKS_PER_BLOCK_MAX:
        raise codec.malformed(
            f"{where}.chunks", f"{len(message.chunks)} are more than {CHUNKS_PER_BLOCK_MAX}"
        )
    total_bytes = sum(chunk.length for chunk in message.chunks)
    if message.HasField("size") and message.size != total_bytes:
        raise codec.malformed(f"{where}.size", f"{message.size}, but its chunks hold {total_bytes}")
    _check_notes(message, where)
    empty = [at for at, chunk in enumerate(message.chunks) if not chunk.length]
    for at in reversed(empty):
        del message.chunks[at]
    for at, chunk in enumerate(message.chunks):
        parse_written_chunk(chunk, BlockId(message.block_id.local_id), f"{where}.chunks[{at}]")
    block_id = BlockId(message.block_id.local_id)
    row = message.SerializeToString()
    try:
        return decode_noted(container_id, block_id, row, None).block
    except (DamagedData, UnsupportedFormat) as error:
        raise codec.malformed(where, str(error)) from error


def _check_notes(message: Any, where: str) -> None:
    """Raise RefusedError if the metadata of a block is invalid.

    It is invalid if an entry is not text or if there are too many entries. A block with an
    incremental chunk list is refused, too.
    """
    codec.check_pair_count(len(message.metadata), f"{where}.metadata")
    notes = []
    for at, pair in enumerate(message.metadata):
        try:
            notes.append(container_pb2.KeyValue(key=pair.key.decode(), value=pair.value.decode()))
        except UnicodeDecodeError as error:
            raise codec.malformed(f"{where}.metadata[{at}]", "is no UTF-8") from error
    codec.parse_metadata(notes, f"{where}.metadata")
    if any(note.key == INCREMENTAL for note in notes):
        raise RefusedError(
            Code.INELIGIBLE,
            f"{where}: incremental chunk lists are not supported",
        )
