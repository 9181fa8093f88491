"""Encodes Suture's rows and trees in Ozone's format. No I/O.

A "note" is one entry of the metadata of a block. A block keeps the notes that its client wrote.
Chunk names are generated, because Ozone does not use them. Ozone stores a stripe checksum in the
chunk. Suture stores it as a note of the block (`STRIPE`, `STRIPES`).
"""

import base64
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from merkle.blockrow import encode_text
from merkle.checksum import checksum_width_bytes
from merkle.damaged_data import DamagedData
from merkle.replica import (
    METADATA_BYTES_MAX,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
)
from merkle.tree import Tree
from ozone.disk.blockrow import INCREMENTAL, StoredBlock, decode_stored
from ozone.disk.messages import BLOCK_DATA, CHECKSUM_INFO, CHUNK_INFO, parse

STRIPE: Final = "ozone.stripe_checksum."
"""Key prefix of a note with the stripe checksum of one chunk, in base64. The chunk's offset
follows."""
STRIPES: Final = "ozone.stripe_checksums."
"""Key prefix of numbered notes that together contain all stripe checksums, used if one note per
checksum would be too many. The concatenated records are split and encoded in base64."""
RECORD: Final = struct.Struct(">QI")  # offset of the chunk, number of bytes that follow
PACKED_BYTES: Final = 3_072  # bytes in one note: 4,096 characters, the limit of Suture's RPCs
NOTES_MAX: Final = 64  # notes per block, a limit of Suture's RPCs (suture/wire/mapping/codec.py)


def decode_noted(
    container_id: ContainerId, block_id: BlockId, row: bytes | None, tail: bytes | None
) -> StoredBlock:
    """Return the block in two rows with its metadata entries (notes).

    `encode_row` restores the row. Each stripe checksum becomes a note. If there are too many stripe
    checksums, several are packed into one note. If even the packed notes do not fit, the stripe
    checksums are dropped. Raise DamagedData or UnsupportedFormat, as `decode_stored` does.
    """
    stored = decode_stored(container_id, block_id, row, tail)
    notes: dict[str, str] = {}
    stripes: dict[int, bytes] = {}
    for data in (row, tail):
        if data is None:
            continue
        message = parse(BLOCK_DATA, data)
        pairs = [(item.key, item.value) for item in message.metadata]
        if any(isinstance(text, bytes) for pair in pairs for text in pair):  # invalid Unicode
            raise DamagedData(f"row of block {block_id}: a note that is no text")
        notes.update(pairs)
        stripes.update(
            (chunk.offset, chunk.stripe_checksum)
            for chunk in message.chunks
            if chunk.stripe_checksum
        )
    notes.pop(INCREMENTAL, None)  # obsolete, because `block` includes the last chunk
    forms = ({**notes, **form(stripes)} for form in (_each, _packed))
    kept = next(filter(_fits, forms), notes)
    return replace(stored, block=replace(stored.block, metadata=tuple(kept.items())))


def _fits(notes: Mapping[str, str]) -> bool:
    """Return whether these metadata entries (notes) are within the limits per block.

    The number of the entries and the number of their bytes are limited.
    """
    size_bytes = sum(len(encode_text(key, value)) for key, value in notes.items())
    return len(notes) <= NOTES_MAX and size_bytes <= METADATA_BYTES_MAX


def _each(stripes: Mapping[int, bytes]) -> dict[str, str]:
    """Return the stripe checksums as metadata entries (notes), one entry per checksum."""
    return {f"{STRIPE}{at}": base64.b64encode(data).decode() for at, data in stripes.items()}


def _packed(stripes: Mapping[int, bytes]) -> dict[str, str]:
    """Return a few metadata entries (notes) that together contain all stripe checksums."""
    records = b"".join(RECORD.pack(at, len(data)) + data for at, data in stripes.items())
    cuts = range(0, len(records), PACKED_BYTES)
    return {
        f"{STRIPES}{number}": base64.b64encode(records[at : at + PACKED_BYTES]).decode()
        for number, at in enumerate(cuts)
    }


def stripes_of(notes: Mapping[str, str]) -> dict[int, bytes]:
    """Return the stripe checksums in the metadata entries (notes) of a block, by chunk offset.

    Ignore other entries.
    """
    found: dict[int, bytes] = {}
    packed = b""
    with suppress(ValueError):
        for number in range(NOTES_MAX):
            if f"{STRIPES}{number}" not in notes:
                break
            packed += base64.b64decode(notes[f"{STRIPES}{number}"], validate=True)
    at = 0
    while at + RECORD.size <= len(packed):
        offset, size_bytes = RECORD.unpack_from(packed, at)
        at += RECORD.size + size_bytes
        if at <= len(packed):
            found[offset] = packed[at - size_bytes : at]
    for key, value in notes.items():
        with suppress(ValueError):
            found[int(key.removeprefix(STRIPE))] = base64.b64decode(value, validate=True)
    return found


def encode_row(container_id: ContainerId, block: BlockData, replica_index: int) -> bytes:
    """Return a block as a row of Ozone's table of blocks.

    Answers contain blocks in the same format.
    """
    message = BLOCK_DATA()
    named = message.block_id
    named.container_id, named.local_id, named.bcsid = container_id, block.block_id, block.bcsid
    if replica_index:
        named.replica_index = replica_index
    noted: dict[str, str] = {}
    for key, value in block.metadata:
        if key.startswith((STRIPE, STRIPES)):
            noted[key] = value
        else:
            message.metadata.add(key=key, value=value)
    stripes = stripes_of(noted)
    size_bytes = 0
    for number, chunk in enumerate(block.chunks, start=1):
        added = message.chunks.add(name=f"{block.block_id}_chunk_{number}")
        _fill(added, chunk)
        if chunk.offset in stripes:
            added.stripe_checksum = stripes[chunk.offset]
        size_bytes += chunk.length_bytes
    message.size = size_bytes
    row: bytes = message.SerializeToString(deterministic=True)
    return row


def encode_chunk(block_id: BlockId, chunk: ChunkInfo) -> bytes:
    """Return a chunk as an encoded message, in the format in which Ozone's clients send it."""
    message = CHUNK_INFO(name=f"{block_id}_chunk_{chunk.offset}")
    _fill(message, chunk)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _fill(message: Any, chunk: ChunkInfo) -> None:
    message.offset, message.length = chunk.offset, chunk.length_bytes
    sums = message.checksum_data
    sums.type, sums.bytes_per_checksum = chunk.checksum_type, chunk.bytes_per_checksum
    if chunk.checksum_type is ChecksumType.NONE:
        return
    width = checksum_width_bytes(chunk.checksum_type)
    data = chunk.window_checksums
    sums.checksums.extend(data[at : at + width] for at in range(0, len(data), width))


def encode_tree_file(container_id: ContainerId, tree: Tree, root: int | None) -> bytes:
    """Return the content of Ozone's tree file for a CRC-32C tree.

    The content has every field that Ozone writes. If `root` is None, Ozone treats the file as if
    there was no tree yet.
    """
    info = CHECKSUM_INFO(container_id=container_id)
    info.tree.SetInParent()
    if root is not None:
        info.tree.checksum = root
    offsets, lengths = tree.chunk_offsets.tolist(), tree.chunk_lengths.tolist()
    leaves, healthy = tree.chunk_checksums.tolist(), tree.chunk_healthy.tolist()
    starts = tree.chunk_starts.tolist()
    columns = (tree.block_ids.tolist(), tree.block_checksums.tolist(), tree.deleted.tolist())
    for index, (block_id, checksum, is_deleted) in enumerate(zip(*columns, strict=True)):
        block = info.tree.blocks.add(block_id=block_id, checksum=checksum, deleted=is_deleted)
        for at in range(starts[index], starts[index + 1]):
            block.chunks.add(
                offset=offsets[at], length=lengths[at], checksum=leaves[at], matches=healthy[at]
            )
    data: bytes = info.SerializeToString(deterministic=True)
    return data
