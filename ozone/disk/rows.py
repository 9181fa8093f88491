"""One container's rows in a view of its database, whatever the schema.

    V3   be64(container) | decimal block id      one database a volume
    V2   decimal block id                        one database a container

The order of the keys is that of the text: 10, 100, 9. So ids of equally many digits are read
together, in as many sweeps as there are lengths; nearly always there is one.
"""

import struct
from collections.abc import Iterator
from typing import Final

from merkle.damaged import Damaged
from merkle.replica import BlockId, ContainerId
from ozone.disk.database import BLOCKS, DELETES, LAST_CHUNKS, NUMBERS, View
from ozone.disk.layout import number_of
from ozone.disk.messages import DELETED_BLOCKS, parse

SEPARATOR: Final = b"|"
INTERNAL: Final = b"#"  # what Ozone keeps beside the blocks
NUMBER: Final = struct.Struct(">q")
RECORDED_ROOT: Final = "#DATACHECKSUM"
BYTES_USED: Final = "#BYTESUSED"

Pair = tuple[bytes | None, bytes | None]


class ContainerRows:
    """The rows of one container in one view."""

    def __init__(self, view: View, container_id: ContainerId, schema: int) -> None:
        self._view = view
        self._prefix = struct.pack(">Q", container_id) + SEPARATOR if schema == 3 else b""
        self._container_id = container_id
        self._condemned: frozenset[BlockId] | None = None
        self.unknown_count = 0  # keys that no block has, of those that were swept over

    def blocks(self) -> Iterator[tuple[BlockId, bytes | None, bytes | None]]:
        """Yield by ascending id the row of each block and of its last chunk; one may be None."""
        tails = dict(self._swept(LAST_CHUNKS))
        digits = {len(key) for key, _ in self._keys(BLOCKS)}
        digits |= {len(str(block_id)) for block_id in tails}
        for count in sorted(digits):
            waiting = sorted(number for number in tails if len(str(number)) == count)
            for block_id, row in self._swept(BLOCKS, count):
                while waiting and waiting[0] < block_id:
                    alone = waiting.pop(0)
                    yield alone, None, tails[alone]
                if waiting and waiting[0] == block_id:
                    waiting.pop(0)
                yield block_id, row, tails.get(block_id)
            for alone in waiting:
                yield alone, None, tails[alone]

    def pair(self, block_id: BlockId) -> Pair:
        """Return the rows of one block, as `blocks` does; (None, None) where there is none."""
        key = self._prefix + str(block_id).encode()
        return self._view.value(BLOCKS, key), self._view.value(LAST_CHUNKS, key)

    def number(self, name: str) -> int | None:
        """Return one of Ozone's numbers of this container; None where it is absent or no number."""
        value = self._view.value(NUMBERS, self._prefix + name.encode())
        if value is None or len(value) != NUMBER.size:
            return None
        number: int = NUMBER.unpack(value)[0]
        return number

    def condemned(self) -> frozenset[BlockId]:
        """Return the blocks that Ozone was told to delete and may be deleting now."""
        if self._condemned is None:
            rows = [row for _, row in self._view.items(DELETES, self._prefix)]
            found = (block for row in rows for block in self._deleted_by(row))
            self._condemned = frozenset(found)
        return self._condemned

    def _deleted_by(self, row: bytes) -> list[BlockId]:
        try:
            message = parse(DELETED_BLOCKS, row)
        except Damaged:  # it says nothing that could be believed
            return []
        is_ours = message.container_id == self._container_id
        return [BlockId(number) for number in message.local_ids] if is_ours else []

    def _keys(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        self.unknown_count = 0
        for key, value in self._view.items(family, self._prefix):
            if number_of(key.decode("ascii", "replace")) is not None:
                yield key, value
            elif not key.startswith(INTERNAL):
                self.unknown_count += 1

    def _swept(self, family: str, digits: int = 0) -> Iterator[tuple[BlockId, bytes]]:
        for key, value in self._keys(family):
            if digits in {0, len(key)}:
                yield BlockId(int(key)), value
