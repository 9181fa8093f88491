"""What a block says of the file that it is a part of, and files put together out of such blocks.

A writer gives each block, beside the key and the number of the part, a note of the put:

    put = ID PARTS BYTES AT_MS      of the put, how many parts the file has, its size, its time

So a file can be found again by the datanodes alone, and two puts of one key are not mixed. Blocks
of writers from before have no such note; what they make is told apart (`Found.is_certain`). Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final

KEY: Final = "key"
PART: Final = "part"
PUT: Final = "put"
SCHEME: Final = "scheme"

_NUMBER_CHARS_MAX: Final = 19  # of one that fits 63 bits


@dataclass(frozen=True, slots=True)
class PutNote:
    """One put of one file."""

    put_id: str
    part_count: int
    size_bytes: int
    at_ms: int

    def encoded(self) -> str:
        """Return the value under `PUT`."""
        return f"{self.put_id} {self.part_count} {self.size_bytes} {self.at_ms}"


def decoded(text: str) -> PutNote | None:
    """Return what was noted; None: nothing that a writer notes."""
    put_id, *numbers = text.split(" ")
    values = [number for number in map(_number, numbers) if number is not None]
    if not put_id or len(numbers) != len(PutNote.__slots__) - 1 or len(values) != len(numbers):
        return None
    return PutNote(put_id, *values) if values[0] else None


def metadata_of(
    key: str, part: int, note: PutNote | None, scheme: str
) -> tuple[tuple[str, str], ...]:
    """Return what a block says of itself."""
    pairs = [(KEY, key), (PART, str(part))]
    if note is not None:
        pairs.append((PUT, note.encoded()))
    if scheme:
        pairs.append((SCHEME, scheme))
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class PartBlock:
    """A block that can be read, and what it says of itself. `length_bytes` is of a file's bytes:
    of a block group, those of all its shards together."""

    container_id: int
    local_id: int
    bcsid: int
    length_bytes: int
    key: str
    part: int
    note: PutNote | None


def part_of(
    metadata: Mapping[str, str], *, container_id: int, local_id: int, bcsid: int, length_bytes: int
) -> PartBlock | None:
    """Return the block as a part of a file; None: it does not say of which."""
    key, part = metadata.get(KEY, ""), _number(metadata.get(PART, ""))
    if not key or part is None:
        return None
    note = decoded(metadata.get(PUT, ""))
    return PartBlock(container_id, local_id, bcsid, length_bytes, key, part, note)


@dataclass(frozen=True, slots=True)
class Found:
    """One put of a key, as its blocks show it; in order of its parts.

    It `is_whole` if all parts are there. It `is_certain` if a note says so: without one the last
    parts may be missing, or be those of another put.
    """

    key: str
    blocks: tuple[PartBlock, ...]
    is_whole: bool
    is_certain: bool
    at_ms: int = 0  # 0: not known

    @property
    def size_bytes(self) -> int:
        """Bytes of the parts that are there."""
        return sum(block.length_bytes for block in self.blocks)

    @property
    def last_local_id(self) -> int:
        """Tells puts of one key apart by time: block ids only grow."""
        return max(block.local_id for block in self.blocks)


def files_of(blocks: Iterable[PartBlock]) -> list[Found]:
    """Put blocks together to files: one for each put of each key, by key, older puts first."""

    def put_of(block: PartBlock) -> tuple[str, str]:
        return block.key, "" if block.note is None else block.note.put_id

    found = [
        _file(key, list(group))
        for (key, _put), group in groupby(sorted(blocks, key=put_of), key=put_of)
    ]
    return sorted(found, key=lambda one: (one.key, one.last_local_id))


def _file(key: str, blocks: list[PartBlock]) -> Found:
    newest: dict[int, PartBlock] = {}
    for block in sorted(blocks, key=lambda one: one.local_id):
        newest[block.part] = block  # a part that was written again elsewhere: the later one
    parts = tuple(newest[part] for part in sorted(newest))
    is_gapless = [part.part for part in parts] == list(range(len(parts)))
    note = parts[0].note
    if note is not None:
        size_bytes = sum(part.length_bytes for part in parts)
        is_whole = is_gapless and (len(parts), size_bytes) == (note.part_count, note.size_bytes)
        is_said = len({part.note for part in parts}) == 1
        return Found(key, parts, is_whole and is_said, is_certain=True, at_ms=note.at_ms)
    lengths = [part.length_bytes for part in parts]
    is_even = len(set(lengths[:-1])) <= 1 and lengths[-1] <= lengths[0]
    is_single = len(blocks) == len(parts)  # else they may be of several puts
    return Found(key, parts, is_gapless and is_even and is_single, is_certain=False)


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= _NUMBER_CHARS_MAX
    return int(text) if is_number else None
