"""Verification of chunks whose bytes arrive in pieces. No I/O.

A chunk is verified when its last byte has arrived. For CRC32C, the bytes are not stored: one CRC is
updated with each piece, and compared with the combined CRCs of the chunk's windows. For the other
checksum types, which are rare, the chunk (at most 32 MiB) is stored until it is complete.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from merkle.checksum import CASTAGNOLI, long_crc32c, windows_verify
from merkle.crc_combine import combined
from merkle.replica import ChecksumType, ChunkInfo

CRC_BYTES: Final = 4


class StreamedChunks:
    """Verifies the chunks of one block, whose bytes arrive in pieces from offset 0 on."""

    def __init__(self, chunks: Sequence[ChunkInfo]) -> None:
        self._left: Iterator[ChunkInfo] = iter(chunks)
        self._chunk = next(self._left, None)
        self._position = 0
        self._crc = 0
        self._crc32c = long_crc32c()
        self._kept = bytearray()
        self.wrong: list[ChunkInfo] = []

    def feed(self, data: memoryview) -> None:
        """Process the next bytes of the block. Bytes between two chunks are skipped.

        Chunks that are complete and do not match their checksums are added to `wrong`.
        """
        while data:
            chunk = self._chunk
            if chunk is None:
                self._position += len(data)
                return
            if self._position < chunk.offset:
                skipped = min(len(data), chunk.offset - self._position)
                self._position += skipped
                data = data[skipped:]
                continue
            piece = data[: chunk.end - self._position]
            self._add(chunk, piece)
            self._position += len(piece)
            data = data[len(piece) :]
            if self._position == chunk.end:
                self._judge(chunk)

    def missing(self) -> list[ChunkInfo]:
        """Return the chunks that are still incomplete. Call this when the data of the block has
        ended."""
        return [] if self._chunk is None else [self._chunk, *self._left]

    def _add(self, chunk: ChunkInfo, piece: memoryview) -> None:
        if chunk.checksum_type is ChecksumType.CRC32C:
            self._crc = self._crc32c(piece, self._crc)
        elif chunk.checksum_type is not ChecksumType.NONE:
            self._kept += piece

    def _judge(self, chunk: ChunkInfo) -> None:
        if not self._verifies(chunk):
            self.wrong.append(chunk)
        self._chunk = next(self._left, None)
        self._crc = 0
        self._kept = bytearray()

    def _verifies(self, chunk: ChunkInfo) -> bool:
        match chunk.checksum_type:
            case ChecksumType.NONE:
                return True
            case ChecksumType.CRC32C:
                return self._crc == whole_crc(chunk)
        expected, window_bytes = chunk.window_checksums, chunk.bytes_per_checksum
        return windows_verify(chunk.checksum_type, window_bytes, expected, self._kept)


def whole_crc(chunk: ChunkInfo) -> int:
    """Return the CRC32C of the complete chunk, combined from the CRCs of its windows."""
    if len(chunk.window_checksums) == CRC_BYTES:
        return int.from_bytes(chunk.window_checksums)
    return combined(
        CASTAGNOLI,
        chunk.window_checksums,
        part_bytes=chunk.bytes_per_checksum,
        length_bytes=chunk.length_bytes,
    )
