"""The metadata that a writer stores with each block, and the reassembly of files from such blocks.

A writer stores three facts with each block: the key, the number of the part of the file, and a
record of the put:

    put = ID PARTS BYTES AT_MS

ID identifies the put, PARTS is the number of the file's parts, BYTES is its size, and AT_MS is the
time of the put. With this metadata, files can be found from the datanodes alone, and two puts of
one key are not mixed. Blocks of older writers have no such record. For files from such blocks,
`DiscoveredPut.is_certain` is False. No I/O.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

KEY: Final = "key"
PART: Final = "part"
PUT: Final = "put"
SCHEME: Final = "scheme"

_NUMBER_CHARS_MAX: Final = 19  # digits of a 63-bit number


@dataclass(frozen=True, slots=True)
class PutMetadata:
    """The id, the number of parts, the size and the time of one put of a file."""

    put_id: str
    part_count: int
    size_bytes: int
    at_ms: int

    def encoded(self) -> str:
        """Return the record as the text that is stored under the metadata key `PUT`."""
        return f"{self.put_id} {self.part_count} {self.size_bytes} {self.at_ms}"


def decoded(text: str) -> PutMetadata | None:
    """Return the record of a put that is encoded in `text`. Return None if `text` is invalid."""
    put_id, *numbers = text.split(" ")
    values = [number for number in map(_number, numbers) if number is not None]
    if not put_id or len(numbers) != len(PutMetadata.__slots__) - 1 or len(values) != len(numbers):
        return None
    return PutMetadata(put_id, *values) if values[0] else None


def metadata_of(
    key: str, part: int, note: PutMetadata | None, scheme: str
) -> tuple[tuple[str, str], ...]:
    """Return the metadata to store with a block: the key, the number of the part, the record of the
    put, and the name of the erasure code if there is one."""
    pairs = [(KEY, key), (PART, str(part))]
    if note is not None:
        pairs.append((PUT, note.encoded()))
    if scheme:
        pairs.append((SCHEME, scheme))
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class PartBlock:
    """A readable block with its metadata, which names a part of a file.

    `length_bytes` is the number of bytes of the file that the block has. For a block group, these
    are the bytes of all its data shards.
    """

    container_id: int
    local_id: int
    bcsid: int
    length_bytes: int
    key: str
    part: int
    note: PutMetadata | None


def part_of(
    metadata: Mapping[str, str], *, container_id: int, local_id: int, bcsid: int, length_bytes: int
) -> PartBlock | None:
    """Return the block with this metadata as a part of a file. Return None if the metadata names no
    file."""
    key, part = metadata.get(KEY, ""), _number(metadata.get(PART, ""))
    if not key or part is None:
        return None
    note = decoded(metadata.get(PUT, ""))
    return PartBlock(container_id, local_id, bcsid, length_bytes, key, part, note)


@dataclass(frozen=True, slots=True)
class DiscoveredPut:
    """A stored file that was reassembled from its blocks, in the order of its parts.

    `is_whole` is True if no part is missing. `is_certain` is True if the blocks have a record of
    the put (`PutMetadata`). Without this record, the last parts may be missing, or may belong to
    another put.
    """

    key: str
    blocks: tuple[PartBlock, ...]
    is_whole: bool
    is_certain: bool
    at_ms: int = 0  # 0 = unknown

    @property
    def size_bytes(self) -> int:
        """Total number of bytes of the parts that were found."""
        return sum(block.length_bytes for block in self.blocks)

    @property
    def last_local_id(self) -> int:
        """Highest block id of the put. Puts of one key are ordered by this id, because later blocks
        have higher ids."""
        return max(block.local_id for block in self.blocks)


def files_of(blocks: Iterable[PartBlock]) -> list[DiscoveredPut]:
    """Assemble blocks into files, one file for each put of each key. Return the files sorted by
    key, and the files of one key from the oldest to the newest put."""

    def put_of(block: PartBlock) -> tuple[str, str]:
        return block.key, "" if block.note is None else block.note.put_id

    found = [
        _file(key, list(group))
        for (key, _put), group in groupby(sorted(blocks, key=put_of), key=put_of)
    ]
    return sorted(found, key=lambda one: (one.key, one.last_local_id))


def _file(key: str, blocks: list[PartBlock]) -> DiscoveredPut:
    newest: dict[int, PartBlock] = {}
    for block in sorted(blocks, key=lambda one: one.local_id):
        newest[block.part] = block  # if a part was written twice, the later block counts
    parts = tuple(newest[part] for part in sorted(newest))
    is_gapless = [part.part for part in parts] == list(range(len(parts)))
    note = parts[0].note
    if note is not None:
        size_bytes = sum(part.length_bytes for part in parts)
        is_whole = is_gapless and (len(parts), size_bytes) == (note.part_count, note.size_bytes)
        is_said = len({part.note for part in parts}) == 1
        return DiscoveredPut(key, parts, is_whole and is_said, is_certain=True, at_ms=note.at_ms)
    lengths = [part.length_bytes for part in parts]
    is_even = len(set(lengths[:-1])) <= 1 and lengths[-1] <= lengths[0]
    is_single = len(blocks) == len(parts)  # otherwise the blocks may belong to several puts
    return DiscoveredPut(key, parts, is_gapless and is_even and is_single, is_certain=False)


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= _NUMBER_CHARS_MAX
    return int(text) if is_number else None
