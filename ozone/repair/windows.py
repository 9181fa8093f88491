"""Assembles a chunk from intact windows of several damaged replicas. No I/O.

The row has a checksum for each window (16 KiB by default). If the replicas of a chunk are damaged
in different windows, the chunk can be assembled from windows that match the row.
"""

from collections.abc import Iterator

from merkle.checksum import checksum_width_bytes, fits, slices_of, window_count
from merkle.replica import ChecksumType, ChunkInfo
from merkle.second_checksum import witness_checksums

Run = tuple[int, int]
"""A range of bytes within a chunk: start and end."""


def fits_twice(chunk: ChunkInfo, data: bytes | memoryview) -> bool:
    """Return whether `data` matches the checksums in `chunk`.

    Two checksum implementations must agree.
    """
    if not fits(chunk, data):
        return False
    if chunk.checksum_type is ChecksumType.NONE:
        return True
    window_bytes, expected = chunk.bytes_per_checksum, chunk.window_checksums
    return witness_checksums(chunk.checksum_type, window_bytes, data) == expected


class Assembly:
    """A chunk that is assembled window by window."""

    def __init__(self, chunk: ChunkInfo) -> None:
        """Create an assembly that has no window yet.

        `chunk` is the chunk in the row, which must have checksums.
        """
        assert chunk.checksum_type is not ChecksumType.NONE
        self._chunk = chunk
        self._width = checksum_width_bytes(chunk.checksum_type)
        self._windows: list[bytes | None] = [None] * window_count(
            chunk.length_bytes, chunk.bytes_per_checksum
        )

    def add_windows(self, start: int, data: bytes | memoryview) -> int:
        """Add the windows of `data` that are missing and match the row.

        Return the number of bytes added. `data` must begin at the start of a window. `start` is its
        offset in the chunk.
        """
        window_bytes = self._chunk.bytes_per_checksum
        first, remainder = divmod(start, window_bytes)
        assert not remainder, "bytes are offered from the beginning of a window"
        taken_bytes = 0
        for index, piece in enumerate(slices_of(data, window_bytes), first):
            is_wanted = index < len(self._windows) and self._windows[index] is None
            if is_wanted and self._window_fits(index, piece):
                self._windows[index] = bytes(piece)
                taken_bytes += len(piece)
        return taken_bytes

    def _window_fits(self, index: int, piece: memoryview) -> bool:
        chunk = self._chunk
        start = index * chunk.bytes_per_checksum
        window = chunk._replace(
            length_bytes=min(chunk.bytes_per_checksum, chunk.length_bytes - start),
            window_checksums=chunk.window_checksums[index * self._width :][: self._width],
        )
        return fits(window, piece)

    def missing(self) -> Iterator[Run]:
        """Yield the missing ranges of the chunk. Adjacent missing windows form one range."""
        window_bytes = self._chunk.bytes_per_checksum
        start: int | None = None
        for index, window in enumerate([*self._windows, b""]):
            if window is None and start is None:
                start = index * window_bytes
            elif window is not None and start is not None:
                yield start, min(index * window_bytes, self._chunk.length_bytes)
                start = None

    def data(self) -> bytes | None:
        """Return the bytes of the chunk, or None while a window is missing."""
        found = [window for window in self._windows if window is not None]
        return b"".join(found) if len(found) == len(self._windows) else None
