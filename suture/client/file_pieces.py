"""Divides a file to store into parts, and each part into chunks. A part becomes one block or block
group."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from merkle.checksum import window_checksums
from merkle.replica import (
    CHUNK_BYTES_DEFAULT,
    WINDOW_BYTES_DEFAULT,
    ChecksumType,
    ChunkInfo,
)
from suture.client.put_metadata import PutMetadata, metadata_of
from suture.errors import Code, RefusedError

BLOCK_BYTES_DEFAULT: Final = 128 * 1024**2  # each block costs some calls to begin

assert CHUNK_BYTES_DEFAULT <= BLOCK_BYTES_DEFAULT

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to store under its key. If `data` is not None, it is the content, and `path` is used
    only in messages."""

    key: str
    path: Path
    size_bytes: int
    data: bytes | None = field(default=None, repr=False)

    def open(self) -> BinaryIO:
        """Open the content as a seekable file. The content may be read several times, because a
        block may have to be sent again."""
        return self.path.open("rb") if self.data is None else BytesIO(self.data)


@dataclass(frozen=True, slots=True)
class FilePart:
    """The part of a file that begins at `offset` and becomes one block or one block group."""

    source: SourceFile
    part: int
    size_bytes: int
    offset: int = 0
    note: PutMetadata | None = None
    scheme: str = ""

    @property
    def metadata(self) -> Metadata:
        """The metadata to store with the block."""
        return metadata_of(self.source.key, self.part, self.note, self.scheme)


def pieces_of(
    source: SourceFile, block_bytes: int = BLOCK_BYTES_DEFAULT, *, scheme: str = ""
) -> list[FilePart]:
    """Divide a file into parts of `block_bytes` bytes, and return them. An empty file has one empty
    part."""
    whole, rest = divmod(source.size_bytes, block_bytes)
    sizes_bytes = [block_bytes] * whole + ([rest] if rest or not whole else [])
    return [
        FilePart(source, part, size_bytes, part * block_bytes, scheme=scheme)
        for part, size_bytes in enumerate(sizes_bytes)
    ]


def piece_count(source: SourceFile, block_bytes: int) -> int:
    """Return the number of parts into which `pieces_of` divides a file."""
    return max(1, -(-source.size_bytes // block_bytes))


def chunks_of(piece: FilePart, chunk_bytes: int = CHUNK_BYTES_DEFAULT) -> Iterator[bytes]:
    """Yield the bytes of a part in chunks of `chunk_bytes` bytes. Raise RefusedError if the file
    has become shorter."""
    with piece.source.open() as file:
        file.seek(piece.offset)
        left_bytes = piece.size_bytes
        while left_bytes:
            data = file.read(min(left_bytes, chunk_bytes))
            if not data:
                raise RefusedError(
                    Code.INVALID_WRITE_SIZE,
                    f"cannot store {piece.source.path}: it became {left_bytes} bytes shorter "
                    "since it was listed",
                )
            left_bytes -= len(data)
            yield data


def describe(offset: int, data: bytes) -> ChunkInfo:
    """Return the description of a chunk at `offset` with this `data`, including its window
    checksums."""
    return ChunkInfo(
        offset=offset,
        length_bytes=len(data),
        checksum_type=ChecksumType.CRC32C,
        bytes_per_checksum=WINDOW_BYTES_DEFAULT,
        window_checksums=window_checksums(ChecksumType.CRC32C, WINDOW_BYTES_DEFAULT, data),
    )
