"""Splits an archive into consecutive parts, as Ozone's datanodes send them, and joins parts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from merkle.replica import ContainerId
from ozone.transfer.entries import malformed
from suture.wire.mapping.varint import field_tag, varint

PART_BYTES: Final = 1024**2  # bytes of an archive per message


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """A part of an archive, for one message. It begins at byte `position` of the archive."""

    position: int
    pieces: Sequence[bytes]
    size_bytes: int
    is_last: bool

    def encoded(self, about: bytes, number: int) -> bytes:
        """Return a message with the encoded fields `about`, and with the bytes in field `number`.

        This copies the bytes once. Protobuf would copy them three times.
        """
        return b"".join([about, field_tag(number), varint(self.size_bytes), *self.pieces])


def gathered(data: Iterable[bytes]) -> Iterator[ArchivePart]:
    """Yield an archive in parts of about a mebibyte.

    The last part may be smaller, and may be empty.
    """
    pieces: list[bytes] = []
    position = size_bytes = 0
    for piece in data:
        pieces.append(piece)
        size_bytes += len(piece)
        if size_bytes >= PART_BYTES:
            yield ArchivePart(position, pieces, size_bytes, is_last=False)
            position += size_bytes
            pieces, size_bytes = [], 0
    yield ArchivePart(position, pieces, size_bytes, is_last=True)


def join_parts(container_id: ContainerId, parts: Iterable[Any]) -> Iterator[bytes]:
    """Yield the bytes of the parts of a container's archive.

    Raise RefusedError if a part does not follow the previous one.
    """
    position = 0
    for part in parts:
        if part.container_id != container_id or part.offset != position:
            raise malformed(
                f"a part of container {part.container_id} at {part.offset}, expected was "
                f"container {container_id} at {position}"
            )
        data: bytes = part.data  # one access only, because each access copies
        position += len(data)
        yield data
