"""An archive in parts that follow each other without a gap, as Ozone's datanodes send it."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from merkle.replica import ContainerId
from ozone.transfer.entries import malformed

PART_BYTES: Final = 1024**2  # of an archive in one message


def gathered(data: Iterable[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield an archive in pieces of about a mebibyte, with where each begins and whether it is the
    last one, which is what is left and may be empty."""
    kept = bytearray()
    position = 0
    for piece in data:
        if not kept and len(piece) >= PART_BYTES:
            yield position, piece, False
            position += len(piece)
            continue
        kept += piece
        if len(kept) >= PART_BYTES:
            yield position, bytes(kept), False
            position += len(kept)
            kept.clear()
    yield position, bytes(kept), True


def joined(container_id: ContainerId, parts: Iterable[Any]) -> Iterator[bytes]:
    """Yield the bytes of parts of a container. Raise Refused where one is not the next."""
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
