"""Reads the rows of one container in a view of its database, for both schemas.

    V3   be64(container) | decimal block id      one database per volume
    V2   decimal block id                        one database per container

Keys are in the order of text: 10, 100, 9. To yield blocks by ascending id, this module reads the
keys once per number of digits. Usually, all ids have the same number. It yields many rows at a
time, because the work per row is most of the cost of small blocks.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from merkle.damaged_data import DamagedData
from merkle.replica import ID_MAX, BlockId, ContainerId
from ozone.disk.database import BLOCKS, DELETES, LAST_CHUNKS, NUMBERS, DatabaseView
from ozone.disk.layout import number_of
from ozone.disk.messages import DELETED_BLOCKS, parse

SEPARATOR: Final = b"|"
AFTER_SEPARATOR: Final = b"}"
INTERNAL: Final = b"#"  # prefix of Ozone's own entries beside the blocks
NUMBER: Final = struct.Struct(">q")
RECORDED_ROOT: Final = "#DATACHECKSUM"
BYTES_USED: Final = "#BYTESUSED"
BLOCK_COUNT: Final = "#BLOCKCOUNT"

ID_DIGITS: Final = len(str(ID_MAX))  # a number with fewer digits is always valid

KEY_START: Final = struct.Struct(">Qc")  # prefix of a key in schema V3: container, separator

Pair = tuple[bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Blocks by ascending id, as columns with one value per block.

    `rows` has the row of each block, and `tails` the row of its last chunk. Either may be None.
    """

    block_ids: Sequence[BlockId]
    rows: Sequence[bytes | None]
    tails: Sequence[bytes | None]


def held_containers(view: DatabaseView) -> frozenset[ContainerId]:
    """Return the ids of the containers of schema V3 that have data in a database.

    A container has data if it has blocks, or if its block count is positive.
    """
    held: set[int] = set()
    for family in (BLOCKS, LAST_CHUNKS, NUMBERS):
        start = b""
        while (key := view.first_key(family, start)) is not None:
            start = key + b"\0"
            if len(key) >= KEY_START.size and key[8:9] == SEPARATOR:
                number, _ = KEY_START.unpack_from(key)
                start = KEY_START.pack(number, AFTER_SEPARATOR)
                if number <= ID_MAX and (family != NUMBERS or _counts_blocks(view, number)):
                    held.add(number)
    return frozenset(map(ContainerId, held))


def _counts_blocks(view: DatabaseView, number: int) -> bool:
    return bool(ContainerRows(view, ContainerId(number), 3).number(BLOCK_COUNT))


class ContainerRows:
    """The rows of one container, read from one view (snapshot) of its database."""

    def __init__(self, view: DatabaseView, container_id: ContainerId, schema: int) -> None:
        self._view = view
        self._prefix = struct.pack(">Q", container_id) + SEPARATOR if schema == 3 else b""
        self._container_id = container_id
        self._condemned: frozenset[BlockId] | None = None
        self.unknown_count = 0  # number of keys read so far that are not block ids
        self._block_count: int | None = None  # None until all rows were read

    def blocks(self) -> Iterator[tuple[BlockId, bytes | None, bytes | None]]:
        """Yield (block id, row of the block, row of its last chunk) by ascending id.

        Either row may be None.
        """
        for batch in self.batches():
            yield from zip(batch.block_ids, batch.rows, batch.tails, strict=True)

    def batches(self) -> Iterator[RowBatch]:
        """Yield the same blocks and rows as `blocks`, in batches of many blocks."""
        tails = dict(self._numbered(LAST_CHUNKS))
        self.unknown_count = block_count = 0
        digits = self._view.key_lengths(BLOCKS, self._prefix)
        digits |= {len(str(block_id)) for block_id in tails}
        for index, count in enumerate(sorted(digits) or [0]):
            waiting = sorted(number for number in tails if len(str(number)) == count)
            for keys, rows in self._view.batches(BLOCKS, self._prefix):
                if not index:
                    self.unknown_count += _strange_count(keys)
                batch = _merged(keys, rows, count, waiting, tails)
                block_count += len(batch.block_ids)
                yield batch
            block_count += len(waiting)
            yield RowBatch(waiting, [None] * len(waiting), [tails[number] for number in waiting])
        self._block_count = block_count

    def lost_rows_text(self, *, has_files: bool) -> str:
        """Return a text that explains why rows must be lost.

        Return "" if there is no evidence of a loss. Call this method after all rows were read.
        Ozone writes the count of the blocks of a container together with each row, but a power
        failure may lose one of the two writes. Ozone's count of bytes is not used, because it
        includes uncommitted bytes. `has_files` is True if the container has block files.
        """
        found = self._block_count
        counted = self.number(BLOCK_COUNT)
        if counted is None and (found or (found == 0 and has_files)):
            return "the database has no count of its blocks, which Ozone always keeps"
        if counted is not None and found is not None and found < counted:
            return f"the database counts {counted} blocks and has the rows of {found}"
        return ""

    def pair(self, block_id: BlockId) -> Pair:
        """Return the row of a block and the row of its last chunk.

        A row is None if it does not exist.
        """
        key = self._prefix + str(block_id).encode()
        return self._view.value(BLOCKS, key), self._view.value(LAST_CHUNKS, key)

    def number(self, name: str) -> int | None:
        """Return the value of one of Ozone's counters of this container.

        Return None if the counter does not exist or is invalid.
        """
        value = self._view.value(NUMBERS, self._prefix + name.encode())
        if value is None or len(value) != NUMBER.size:
            return None
        number: int = NUMBER.unpack(value)[0]
        return number

    def pending_delete_blocks(self) -> frozenset[BlockId]:
        """Return the ids of the blocks with a pending delete, which Ozone may be deleting now."""
        if self._condemned is None:
            rows = (row for _, row in self._view.items(DELETES, self._prefix))
            found = (block for row in rows for block in self._deleted_by(row))
            self._condemned = frozenset(found)
        return self._condemned

    def _deleted_by(self, row: bytes) -> list[BlockId]:
        try:
            message = parse(DELETED_BLOCKS, row)
        except DamagedData:  # its contents cannot be trusted
            return []
        is_ours = message.container_id == self._container_id
        return [BlockId(number) for number in message.local_ids] if is_ours else []

    def _numbered(self, family: str) -> Iterator[tuple[BlockId, bytes]]:
        for key, value in self._view.items(family, self._prefix):
            number = number_of(key.decode("ascii", "replace"))
            if number is not None:
                yield BlockId(number), value


def _are_numbers(keys: Sequence[bytes]) -> bool:
    """Return whether all of `keys`, which are in ascending order, are block ids.

    This is nearly always True.
    """
    return len(max(keys, key=len)) < ID_DIGITS and keys[0][:1] != b"0" and b"".join(keys).isdigit()


def _strange_count(keys: Sequence[bytes]) -> int:
    """Return how many of `keys` are neither block ids nor Ozone's own entries."""
    if _are_numbers(keys):
        return 0
    others = (key for key in keys if number_of(key.decode("ascii", "replace")) is None)
    return sum(not key.startswith(INTERNAL) for key in others)


def _merged(
    keys: Sequence[bytes],
    rows: Sequence[bytes],
    digits: int,
    waiting: list[BlockId],
    tails: Mapping[BlockId, bytes],
) -> RowBatch:
    """Return a batch of the blocks whose ids have `digits` digits, by ascending id.

    `waiting` has the ids of blocks that only have the row of a last chunk in `tails`. They are
    removed from `waiting` and added to the batch.
    """
    if not waiting and not tails and set(map(len, keys)) == {digits} and _are_numbers(keys):
        return RowBatch([BlockId(int(key)) for key in keys], rows, [None] * len(keys))
    found: list[tuple[BlockId, bytes | None]] = []
    for key, row in zip(keys, rows, strict=True):
        number = number_of(key.decode("ascii", "replace"))
        if number is None or len(key) != digits:
            continue
        while waiting and waiting[0] < number:
            found.append((waiting.pop(0), None))
        if waiting and waiting[0] == number:
            waiting.pop(0)
        found.append((BlockId(number), row))
    ids = [block_id for block_id, _ in found]
    return RowBatch(ids, [row for _, row in found], [tails.get(block_id) for block_id in ids])
