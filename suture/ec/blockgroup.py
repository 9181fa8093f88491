"""Determines the length and contents of a block group from the block records of its shards.

The block of each shard has the length of the group in its metadata, under Ozone's name. A shard may
lack the block or report a shorter group, for one of three reasons: its datanode was cut off during
the write, the shard is an old copy, or its disk has lost a write.

A client's write is acknowledged only after all shards have acknowledged it. Therefore, the length
of the group is the longest length that `data_count` shards have completely. With a shorter length,
one shard that has lost data would cause the loss of acknowledged data. A longer group cannot be
computed.
"""

import base64
import binascii
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from merkle.checksum import crc32c
from merkle.replica import BlockData, BlockId, ChunkInfo
from suture.ec.geometry import BlockGroup
from suture.ec.scheme import Scheme
from suture.errors import SutureError

GROUP_LENGTH_KEY: Final = "blockGroupLen"  # Ozone's key for the group's length
STRIPE_CHECKSUMS_KEY: Final = "stripeChecksum"  # Ozone's key, with a CRC32C as value
OZONE_NOTES: Final = "ozone.stripe_checksum"  # prefix of the keys with Ozone's own records
PAIR_CHARS_MAX: Final = 4_096  # maximum length of one value of a block's metadata
STRIPES_PER_PAIR: Final = PAIR_CHARS_MAX // 4 * 3 // 4
STRIPES_WITH_CHECKSUM_MAX: Final = 8 * STRIPES_PER_PAIR  # a group of 18 GiB with rs-3-2-1024k

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RebuildableGroup:
    """A block group that can be rebuilt: its length, and the shards that have its cells.

    `notes` are Ozone's own records of the stripe checksums. They are copied to rebuilt shards.
    """

    block_id: BlockId
    group: BlockGroup
    shards: Mapping[int, BlockData]
    stripe_checksums: tuple[int, ...] = ()
    notes: Metadata = ()

    def chunk(self, index: int, stripe: int) -> ChunkInfo:
        """Return the description of the chunk that is the cell of shard `index` in a stripe."""
        return self.shards[index].chunks[stripe]


@dataclass(frozen=True, slots=True)
class OrphanGroup:
    """A block group that cannot be rebuilt from the available shards, and the reason."""

    block_id: BlockId
    reason: str


def resolve_group(
    scheme: Scheme, block_id: BlockId, known: Mapping[int, BlockData | None]
) -> RebuildableGroup | OrphanGroup:
    """Determine the length of a block group and the shards that have its cells.

    `known` has, by shard index, each available shard's record of the block; None if the shard does
    not have the block. The length is the longest that at least `data_count` shards have. A shard is
    ignored if it has a shorter group, or if its chunks do not match the cells of that length.

    Ozone uses the shortest length that any shard reports, because data beyond that length was not
    acknowledged. This is wrong if the shard has lost the data.
    """
    there = {index: block for index, block in known.items() if block is not None}
    lengths = {index: group_length_bytes(block) for index, block in there.items()}
    named = {index: length for index, length in lengths.items() if length is not None}
    if len(named) < scheme.data_count:
        return OrphanGroup(block_id, f"{len(named)} of {scheme.data_count} sources know its length")
    try:
        group = BlockGroup(scheme, longest_of_enough(scheme, named.values()))
    except SutureError as error:
        return OrphanGroup(block_id, str(error))
    shards = {i: there[i] for i in sorted(named) if has_group(group, i, there[i], named[i])}
    if len(shards) < scheme.data_count:
        differ = f"; its sources know different lengths: {sorted(named.items())}"
        return OrphanGroup(
            block_id,
            f"the chunks of {len(shards)} of {scheme.data_count} sources follow the cells of a "
            f"group of {group.length_bytes} bytes"
            + (differ if len(set(named.values())) > 1 else ""),
        )
    checksums = stripe_checksums_of(shards.values(), group)
    return RebuildableGroup(block_id, group, shards, checksums, _ozone_notes(shards.values()))


def has_group(group: BlockGroup, index: int, block: BlockData, length_bytes: int) -> bool:
    """Return True if a shard has its cells of `group`.

    `length_bytes` is the group's length in the shard's own record. It must equal the length of
    `group`. It may be greater only if `group` ends with a complete stripe, because the parity of a
    partial stripe differs from that of a complete stripe.
    """
    is_part = (
        length_bytes > group.length_bytes and not group.length_bytes % group.scheme.stripe_bytes
    )
    is_it = length_bytes == group.length_bytes or is_part
    return is_it and follows_cells(group, index, block)


def follows_cells(group: BlockGroup, index: int, block: BlockData) -> bool:
    """Return True if the chunks of a shard have the offsets and lengths of the group's cells.
    Chunks beyond the end of the group are ignored."""
    cell_bytes = group.scheme.cell_bytes
    expected = [
        (stripe * cell_bytes, group.cell_bytes(stripe, index))
        for stripe in range(group.stripe_count)
        if group.cell_bytes(stripe, index)
    ]
    found = [(chunk.offset, chunk.length_bytes) for chunk in block.chunks]
    return found[: len(expected)] == expected


def group_length_bytes(block: BlockData) -> int | None:
    """Return the length of the block group in bytes from the metadata of a block. Return None if
    the metadata has no valid length."""
    text = dict(block.metadata).get(GROUP_LENGTH_KEY, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def longest_of_enough(scheme: Scheme, lengths_bytes: Collection[int]) -> int:
    """Return the greatest length that at least `data_count` of the given lengths reach. If there
    are fewer lengths, return the greatest."""
    ordered = sorted(lengths_bytes, reverse=True)
    return ordered[scheme.data_count - 1 if len(ordered) >= scheme.data_count else 0]


def group_metadata(metadata: Iterable[tuple[str, str]], group: BlockGroup) -> Metadata:
    """Return the metadata of a shard with the length of this group, and without stripe
    checksums."""
    records = (f"{STRIPE_CHECKSUMS_KEY}.", OZONE_NOTES)
    kept = [
        (key, value)
        for key, value in metadata
        if key != GROUP_LENGTH_KEY and not key.startswith(records)
    ]
    return (*kept, (GROUP_LENGTH_KEY, str(group.length_bytes)))


def stripe_checksum(chunks: Sequence[ChunkInfo]) -> int:
    """Return the CRC32C of the window checksums of a stripe's cells, in the order of their indexes.

    Ozone stores the window checksums. Their CRC32C also verifies a stripe, and has only 4 bytes.
    Empty cells are omitted.
    """
    return crc32c(b"".join(chunk.window_checksums for chunk in chunks))


def is_stripe_checksum(
    agreed: RebuildableGroup, stripe: int, chunks: Mapping[int, ChunkInfo]
) -> bool:
    """Return False if the chunks of a stripe do not match the checksum that the writer recorded.

    Return True if they match, or if they cannot be compared, because no checksum was recorded or a
    chunk is missing.
    """
    expected = agreed.group.indexes(stripe)
    if not agreed.stripe_checksums or any(index not in chunks for index in expected):
        return True
    found = stripe_checksum([chunks[index] for index in expected])
    return found == agreed.stripe_checksums[stripe]


def stripe_metadata(checksums: Sequence[int]) -> Metadata:
    """Return stripe checksums as metadata. Return an empty tuple if there are too many.

    Each checksum has 4 bytes, big-endian. The metadata has the keys `stripeChecksum.0`,
    `stripeChecksum.1` and so on; each value is the base64 of several checksums.
    """
    if len(checksums) > STRIPES_WITH_CHECKSUM_MAX:
        return ()
    parts = [
        checksums[start : start + STRIPES_PER_PAIR]
        for start in range(0, len(checksums), STRIPES_PER_PAIR)
    ]
    return tuple(
        (
            f"{STRIPE_CHECKSUMS_KEY}.{number}",
            base64.b64encode(struct.pack(f">{len(part)}I", *part)).decode(),
        )
        for number, part in enumerate(parts)
    )


def stripe_checksums_of(blocks: Iterable[BlockData], group: BlockGroup) -> tuple[int, ...]:
    """Return the checksum of each stripe from the metadata of the shards.

    Return an empty tuple if the shards have no checksums, different ones, or the wrong number. As
    in Ozone, the shard with index 1 and the parity shards store the checksums.
    """
    found = {checksums for block in blocks if (checksums := _stripe_checksums(block))}
    if len(found) != 1:
        return ()
    [checksums] = found
    return checksums if len(checksums) == group.stripe_count else ()


def _ozone_notes(blocks: Iterable[BlockData]) -> Metadata:
    """Return Ozone's own records of the stripe checksums, from the first shard that has them."""
    found = (
        tuple(pair for pair in block.metadata if pair[0].startswith(OZONE_NOTES))
        for block in blocks
    )
    return next(filter(None, found), ())


def _stripe_checksums(block: BlockData) -> tuple[int, ...]:
    pairs = dict(block.metadata)
    packed = b""
    for number in range(len(pairs)):
        text = pairs.get(f"{STRIPE_CHECKSUMS_KEY}.{number}")
        if text is None:
            break
        try:
            packed += base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return ()
    return struct.unpack(f">{len(packed) // 4}I", packed[: len(packed) // 4 * 4])
