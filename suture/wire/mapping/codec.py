"""Converts protobuf messages to values and back. All data from other processes is checked here.

Each parse function accepts any message. It either returns a value that obeys the rules of
`merkle.replica`, or raises `RefusedError(MALFORMED_REQUEST)` with the path of the invalid field.
Other datanodes are not trusted, so their responses are checked like requests. The argument `where`
is the path of the field for the error.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final, cast

from health.tables.replica_numbers import NUMBERS
from merkle import checksum
from merkle.checksum import Algorithm
from merkle.replica import (
    BLOCK_BYTES_MAX,
    CHUNK_BYTES_MAX,
    CHUNKS_PER_BLOCK_MAX,
    ID_MAX,
    METADATA_BYTES_MAX,
    WINDOW_BYTES_DEFAULT,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
    ReplicaState,
)
from merkle.tree_summary import TreeSummary
from suture.errors import Code, RefusedError
from suture.wire.v1 import container_pb2 as pb

METADATA_PAIRS_MAX: Final = 64  # per block; Ozone's clients set two
METADATA_CHARS_MAX: Final = 4_096  # an object's key may be 1,024 and more
METADATA_PAIR_BYTES: Final = 8  # bytes of a pair in a row, in addition to its text
_PLAIN_NAME: Final = re.compile(r"|[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
REPLICA_INDEX_MAX: Final = NUMBERS["replica_index"].high
NAME_CHARS_MAX: Final = 255  # maximum for ids, addresses and states: the limit of file names
UNSTATED: Final = cast(ChecksumType, None)
"""Checksum type of a chunk that a client writes without checksums. The store then computes CRC32C.
Stored chunks never have this type."""

# Protobuf's enums are open, so any number may arrive.
STATES: Final = {pb.ReplicaState.Value(state): state for state in ReplicaState}
_TREE_NAMES: Final = {algorithm: f"TREE_{algorithm.name}" for algorithm in Algorithm}
ALGORITHMS: Final = {pb.TreeAlgorithm.Value(name): word for word, name in _TREE_NAMES.items()}
_KINDS: Final[dict[int, ChecksumType]] = {int(kind): kind for kind in ChecksumType}
_KIND_NUMBERS: Final = {kind: cast(pb.ChecksumType, int(kind)) for kind in ChecksumType}
assert all(pb.ChecksumType.Value(kind.name) == kind for kind in ChecksumType)


def malformed(where: str, what: str, *, hint: str = "") -> RefusedError:
    """Return the error for an invalid value of the field with the path `where`."""
    return RefusedError(Code.MALFORMED_REQUEST, f"{where}: {what}", hint=hint, field=where)


def parse_int(value: int, where: str, *, low: int, high: int) -> int:
    """Return `value`. Raise RefusedError if it is less than `low` or greater than `high`."""
    if not low <= value <= high:
        raise malformed(where, f"{value} is not within {low}..{high}")
    return value


def parse_text(value: str, where: str, *, chars_max: int = NAME_CHARS_MAX) -> str:
    """Return `value`. Raise RefusedError if it is too long or contains a zero character."""
    if len(value) > chars_max:
        raise malformed(where, f"{len(value)} characters are more than {chars_max}")
    if "\0" in value:
        raise malformed(where, "contains a zero character")
    return value


def parse_datanode_id(value: str, where: str) -> str:
    """Return `value`. Raise RefusedError if it is neither empty nor a plain name. Datanode ids are
    written to files and logs."""
    if not _PLAIN_NAME.fullmatch(value):
        raise malformed(where, "is not up to 128 of letters, digits, '.', '_', '-'")
    return value


def parse_container_id(value: int, where: str = "container_id") -> ContainerId:
    """Return `value` as a container id. Raise RefusedError if it is out of range. 0 is out of
    range, because it means that the field is not set."""
    return ContainerId(parse_int(value, where, low=1, high=ID_MAX))


def parse_block_id(value: int, where: str = "block_id.local_id") -> BlockId:
    """Return `value` as a block id. Raise RefusedError if it is out of range."""
    return BlockId(parse_int(value, where, low=1, high=ID_MAX))


def parse_bcsid(value: int, where: str) -> Bcsid:
    """Return `value` as a commit id. Raise RefusedError if it is out of range. 0 means that the
    container has no commits."""
    return Bcsid(parse_int(value, where, low=0, high=ID_MAX))


def parse_replica_index(value: int, where: str = "replica_index") -> int:
    """Return `value` as a replica index: 0 for a complete copy, or 1 to n for a shard. Raise
    RefusedError if it is out of range."""
    return parse_int(value, where, low=0, high=REPLICA_INDEX_MAX)


def parse_block_key(message: pb.BlockId, where: str) -> tuple[ContainerId, BlockId]:
    """Return the container id and the block id in `message`. Raise RefusedError if a field is out
    of range.

    Each read of a client calls this function. Therefore, it checks valid ids without further calls.
    """
    container_id, block_id = message.container_id, message.local_id
    if (
        1 <= container_id <= ID_MAX
        and 1 <= block_id <= ID_MAX
        and message.replica_index <= REPLICA_INDEX_MAX
    ):
        return ContainerId(container_id), BlockId(block_id)
    parse_replica_index(message.replica_index, f"{where}.replica_index")
    return (
        parse_container_id(message.container_id, f"{where}.container_id"),
        parse_block_id(message.local_id, f"{where}.local_id"),
    )


def parse_chunk(message: pb.ChunkInfo, where: str) -> ChunkInfo:
    """Convert the description of a chunk. Raise RefusedError if a field is invalid, or if the
    number of checksums does not match the length."""
    offset, length = _parse_span(message, where)
    told = message.checksum
    kind = _KINDS.get(told.type) or _parse_checksum_type(told.type, f"{where}.checksum.type")
    window_bytes = _parse_window_bytes(told, kind, where)
    sums = told.checksums
    width = checksum.checksum_width_bytes(kind)
    expected = width * checksum.window_count(length, window_bytes)
    if len(sums) != expected:
        raise malformed(
            f"{where}.checksum.checksums",
            f"{len(sums)} bytes, but {length} bytes in windows of {window_bytes} need {expected}",
        )
    return ChunkInfo(offset, length, kind, window_bytes, sums)


def parse_written_chunk(message: pb.ChunkInfo, where: str) -> ChunkInfo:
    """Convert the description of a chunk that a client writes or commits. It may have no checksums.

    If a written chunk has no checksum type, the store computes CRC32C. In a commit, such a chunk
    means the chunk that was written at the same offset. Raise RefusedError if a field is invalid.
    """
    if message.checksum.type != pb.CHECKSUM_TYPE_UNSPECIFIED:
        return parse_chunk(message, where)
    if message.checksum.checksums:
        raise malformed(f"{where}.checksum.type", "checksums came without their type")
    offset, length = _parse_span(message, where)
    return ChunkInfo(offset, length, UNSTATED, 0, b"")


def _parse_span(message: pb.ChunkInfo, where: str) -> tuple[int, int]:
    offset, length = message.offset, message.length
    if not 0 <= offset <= BLOCK_BYTES_MAX or not 1 <= length <= CHUNK_BYTES_MAX:
        parse_int(offset, f"{where}.offset", low=0, high=BLOCK_BYTES_MAX)
        parse_int(length, f"{where}.length", low=1, high=CHUNK_BYTES_MAX)
    if offset + length > BLOCK_BYTES_MAX:
        raise malformed(where, f"ends at {offset + length}, blocks end at {BLOCK_BYTES_MAX}")
    return offset, length


def _parse_checksum_type(number: int, where: str) -> ChecksumType:
    try:
        return ChecksumType(number)
    except ValueError:
        known = ", ".join(f"{kind.value} {kind.name}" for kind in ChecksumType)
        raise RefusedError(
            Code.NO_SUCH_ALGORITHM,
            f"{where}: checksum type {number} is unknown",
            hint=f"known are {known}",
            field=where,
        ) from None


def _parse_window_bytes(message: pb.ChecksumData, kind: ChecksumType, where: str) -> int:
    if kind is ChecksumType.NONE and message.bytes_per_checksum == 0:
        return WINDOW_BYTES_DEFAULT  # not used, but a window must not be empty
    if WINDOW_BYTES_MIN <= message.bytes_per_checksum <= WINDOW_BYTES_MAX:
        return message.bytes_per_checksum
    return parse_int(
        message.bytes_per_checksum,
        f"{where}.checksum.bytes_per_checksum",
        low=WINDOW_BYTES_MIN,
        high=WINDOW_BYTES_MAX,
    )


def parse_block(
    message: pb.BlockData,
    where: str,
    *,
    parse: Callable[[pb.ChunkInfo, str], ChunkInfo] = parse_chunk,
) -> tuple[ContainerId, BlockData]:
    """Convert a block, and return its container id and the block. Raise RefusedError if a field is
    invalid.

    The chunks must be in order, and the size must be the sum of their lengths. `parse` converts
    each chunk; for a commit of a client, it is `parse_written_chunk`.
    """
    container_id, block_id = parse_block_key(message.block_id, f"{where}.block_id")
    if len(message.chunks) > CHUNKS_PER_BLOCK_MAX:
        raise malformed(
            f"{where}.chunks", f"{len(message.chunks)} are more than {CHUNKS_PER_BLOCK_MAX}"
        )
    chunks = tuple(
        parse(chunk, f"{where}.chunks[{index}]") for index, chunk in enumerate(message.chunks)
    )
    _check_order(chunks, where)
    total_bytes = sum(chunk.length_bytes for chunk in chunks)
    if message.size != total_bytes:
        raise malformed(f"{where}.size", f"{message.size}, but its chunks hold {total_bytes}")
    bcsid = parse_bcsid(message.block_id.bcsid, f"{where}.block_id.bcsid")
    metadata = parse_metadata(message.metadata, f"{where}.metadata")
    return container_id, BlockData(block_id, bcsid, chunks, metadata)


def _check_order(chunks: Sequence[ChunkInfo], where: str) -> None:
    """Raise RefusedError if the chunks are not in ascending order, or overlap. Gaps are allowed
    here; the store decides about them."""
    for index in range(1, len(chunks)):
        if chunks[index].offset < chunks[index - 1].end:
            raise malformed(
                f"{where}.chunks[{index}].offset",
                f"{chunks[index].offset} is before the end of the chunk in front of it, "
                f"{chunks[index - 1].end}",
            )


def parse_metadata(pairs: Sequence[pb.KeyValue], where: str) -> tuple[tuple[str, str], ...]:
    """Convert the metadata of a block to (key, value) pairs. Raise RefusedError if it exceeds a
    limit."""
    check_pair_count(len(pairs), where)
    metadata = tuple(
        (
            parse_text(pair.key, f"{where}[{index}].key", chars_max=METADATA_CHARS_MAX),
            parse_text(pair.value, f"{where}[{index}].value", chars_max=METADATA_CHARS_MAX),
        )
        for index, pair in enumerate(pairs)
    )
    total_bytes = sum(
        len(key.encode()) + len(value.encode()) + METADATA_PAIR_BYTES for key, value in metadata
    )
    if total_bytes > METADATA_BYTES_MAX:
        raise malformed(where, f"{total_bytes} bytes are more than {METADATA_BYTES_MAX}")
    return metadata


def check_pair_count(count: int, where: str) -> None:
    """Raise RefusedError if there are more pairs than the metadata of a block may have. Call the
    function before the pairs are read."""
    if count > METADATA_PAIRS_MAX:
        raise malformed(where, f"{count} pairs are more than {METADATA_PAIRS_MAX}")


def parse_state(number: int, where: str) -> ReplicaState:
    """Return the replica state with this number. Raise RefusedError if there is none."""
    state = STATES.get(number)
    if state is None:
        raise malformed(where, f"replica state {number} is unknown")
    return state


def parse_summary(message: pb.TreeSummary, where: str) -> TreeSummary:
    """Convert the summary of a tree. The caller must first check that the message has a summary
    (`HasField`). Raise RefusedError if the tree's algorithm is unknown."""
    algorithm = ALGORITHMS.get(message.algorithm)
    if algorithm is None:
        raise RefusedError(
            Code.NO_SUCH_ALGORITHM,
            f"{where}.algorithm: tree algorithm {message.algorithm} is unknown",
            field=f"{where}.algorithm",
        )
    return TreeSummary(
        algorithm=algorithm,
        root=message.root,
        generation=message.generation,
        block_count=message.block_count,
        tombstone_count=message.tombstone_count,
        tombstones_checksum=message.tombstones_checksum,
    )


def chunk_message(chunk: ChunkInfo) -> pb.ChunkInfo:
    """Convert the description of a chunk to a message."""
    return pb.ChunkInfo(
        offset=chunk.offset,
        length=chunk.length_bytes,
        checksum=pb.ChecksumData(
            type=_KIND_NUMBERS[chunk.checksum_type],
            bytes_per_checksum=chunk.bytes_per_checksum,
            checksums=chunk.window_checksums,
        ),
    )


def block_message(container_id: ContainerId, block: BlockData) -> pb.BlockData:
    """Convert a block to a message."""
    return pb.BlockData(
        block_id=pb.BlockId(container_id=container_id, local_id=block.block_id, bcsid=block.bcsid),
        metadata=[pb.KeyValue(key=key, value=value) for key, value in block.metadata],
        chunks=[chunk_message(chunk) for chunk in block.chunks],
        size=sum(chunk.length_bytes for chunk in block.chunks),
    )


def summary_message(summary: TreeSummary) -> pb.TreeSummary:
    """Convert the summary of a tree to a message."""
    return pb.TreeSummary(
        algorithm=_TREE_NAMES[summary.algorithm],
        root=summary.root,
        generation=summary.generation,
        block_count=summary.block_count,
        tombstone_count=summary.tombstone_count,
        tombstones_checksum=summary.tombstones_checksum,
    )
