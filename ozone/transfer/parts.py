"""Splits an archive into consecutive parts, as Ozone's datanodes send it, and joins them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from merkle.replica import ContainerId
from ozone.transfer.entries import malformed
from suture.wire.mapping.varint import field_tag, varint

PART_BYTES: Final = 1024**2  # of an archive per message


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """The bytes of an archive for one message, from `position` on."""

    position: int
    pieces: Sequence[bytes]
    size_bytes: int
    is_last: bool

    def encoded(self, about: bytes, number: int) -> bytes:
        """Return a message: the encoded fields `about`, and the bytes as the field with the given
        number. This copies the bytes once; protobuf would copy them three times.
        """
        return b"".join([about, field_tag(number), varint(self.size_bytes), *self.pieces])


def gathered(data: Iterable[bytes]) -> Iterator[ArchivePart]:
    """Yield an archive in parts of about a mebibyte; the last part is the rest, and may be
    empty.
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
    """Yield the bytes of a container's parts. Raise RefusedError if a part is not the next one."""
    position = 0
    for part in parts:
        if part.container_id != container_id or part.offset != position:
            raise malformed(
                f"a part of container {part.container_id} at {part.offset}, expected was "
                f"container {container_id} at {position}"
            )
        data: bytes = part.data  # each access is a copy
        position += len(data)
        yield data
