"""Reads the files of an archive one after the other, while the archive arrives.

    container.yaml - <id>.tree - db/<table>.data ... - chunks/<block>.block ...

Ozone writes the files in this order. The input is not trusted. Therefore, data without a row is not
stored, and all sizes are limited.
"""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any, Final, cast

import zstandard

from ozone.transfer.messages import Compression
from suture.errors import Code, RefusedError

HEADER_BYTES_MAX: Final = 1024**2  # limit between two files: headers and read-ahead
STEP_BYTES: Final = 1024**2
BUFFER_BYTES: Final = 64 * 1024  # bytes that tarfile reads ahead
WINDOW_BYTES_MAX: Final = 32 * 1024**2  # of zstd; Ozone's own levels use at most 8 MiB
END: Final = bytes(2 * tarfile.BLOCKSIZE)  # checked here, because tarfile accepts any end
DESCRIPTOR: Final = "container.yaml"
TREE_SUFFIX: Final = ".tree"
TABLES: Final = "db"
TABLE_SUFFIX: Final = ".data"
CHUNKS: Final = "chunks"
BLOCK_SUFFIX: Final = ".block"


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """A file of an archive. If the caller does not read all `pieces`, the rest is skipped."""

    name: str
    size_bytes: int
    pieces: Iterator[memoryview]

    def data(self, bytes_max: int) -> bytes:
        """Return the content of the file. Raise RefusedError if it is larger than `bytes_max`."""
        if self.size_bytes > bytes_max:
            raise malformed(f"{self.name} has {self.size_bytes} bytes, at most {bytes_max}")
        return b"".join(self.pieces)


def malformed(what: str) -> RefusedError:
    """Return the error for an invalid archive. `what` describes the fault."""
    return RefusedError(Code.MALFORMED_REQUEST, f"archive of a container: {what}")


def entries(data: Iterator[bytes], compression: Compression) -> Iterator[ArchiveEntry]:
    """Yield the files of an archive. Raise RefusedError if the archive is invalid."""
    source = _Source(_unpacked(data, compression))
    source.allow(HEADER_BYTES_MAX)
    with (
        _read(),
        tarfile.open(fileobj=cast(IO[bytes], source), mode="r|", bufsize=BUFFER_BYTES) as archive,
    ):
        for member in archive:
            yield from _entry(archive, member, source)
    with _read():
        for _ in source.remaining_bytes():
            raise malformed("something follows its end")
    if not source.has_ended:
        raise malformed("it has no end")


@contextmanager
def _read() -> Iterator[None]:
    """Convert errors about an invalid archive in a `with` block to RefusedError."""
    try:
        yield
    except (tarfile.TarError, zstandard.ZstdError, EOFError, ValueError) as error:
        raise malformed(f"cannot be read: {error}") from error


def _entry(
    archive: tarfile.TarFile, member: tarfile.TarInfo, source: "_Source"
) -> Iterator[ArchiveEntry]:
    """Yield one file of an archive. Then skip the part of the file that the caller did not read."""
    if member.isdir():
        return
    if not member.isreg() or member.issparse():
        raise malformed(f"{member.name[:100]!r} is no plain file")
    source.allow(member.size)
    file = archive.extractfile(member)
    assert file is not None, "it is a plain file"

    def pieces() -> Iterator[memoryview]:
        left_bytes = member.size
        while left_bytes:
            with _read():
                piece = file.read(min(left_bytes, STEP_BYTES))
            if not piece:
                raise malformed(f"ends in the middle of {member.name[:100]!r}")
            left_bytes -= len(piece)
            yield memoryview(piece)

    taken = pieces()
    yield ArchiveEntry(member.name, member.size, taken)
    for _ in taken:
        pass
    source.allow(HEADER_BYTES_MAX)


class _Source:
    """The arriving bytes as the input of tarfile.

    A read of more bytes than `allow` has allowed is an error.
    """

    def __init__(self, data: Iterator[bytes]) -> None:
        self._data = data
        self._kept = memoryview(b"")  # rest of the last piece
        self._left_bytes = 0
        self._last = b""  # the last bytes that were read

    @property
    def has_ended(self) -> bool:
        """True if the last bytes that were read are the end mark of an archive."""
        return self._last == END

    def allow(self, size_bytes: int) -> None:
        """Allow reading `size_bytes` more bytes.

        At most HEADER_BYTES_MAX bytes that were allowed earlier and not read remain allowed.
        """
        self._left_bytes = min(self._left_bytes, HEADER_BYTES_MAX) + size_bytes

    def read(self, size_bytes: int) -> bytes:
        """Return `size_bytes` bytes, or fewer at the end of the archive.

        Raise RefusedError if more bytes are read than allowed.
        """
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise malformed(f"more than {HEADER_BYTES_MAX} bytes of headers")
        pieces: list[memoryview] = []
        while size_bytes:
            if not self._kept:
                piece = next(self._data, None)
                if piece is None:
                    break
                self._kept = memoryview(piece)
            pieces.append(self._kept[:size_bytes])
            self._kept = self._kept[size_bytes:]
            size_bytes -= len(pieces[-1])
        taken = b"".join(pieces)
        self._record_checksum(taken)
        return taken

    def remaining_bytes(self) -> Iterator[bytes]:
        """Yield the remaining bytes of the archive, without the zeros at its end."""
        zeros = 0
        for piece in chain([bytes(self._kept)], self._data):
            zeros += len(piece)
            self._record_checksum(piece)
            if piece.strip(b"\0") or zeros > HEADER_BYTES_MAX:
                yield piece
        self._kept = memoryview(b"")

    def _record_checksum(self, piece: bytes) -> None:
        self._last = (self._last + piece[-len(END) :])[-len(END) :]


def _unpacked(data: Iterator[bytes], compression: Compression) -> Iterator[bytes]:
    """Return the decompressed bytes of an archive, in pieces.

    Raise RefusedError if the compression is not supported.
    """
    match compression:
        case Compression.NO_COMPRESSION:
            return data
        case Compression.ZSTD:
            return _decompressed(data)
    raise RefusedError(
        Code.INELIGIBLE,
        f"archives compressed with {compression.name} are not supported",
        hint="set hdds.container.replication.compression to NO_COMPRESSION or ZSTD",
    )


def _decompressed(data: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the content of a zstd stream in pieces of at most STEP_BYTES.

    The size of the pieces is limited even if the data expands a lot.
    """
    reader: Any = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).stream_reader(
        cast(IO[bytes], _Pieces(data)), read_size=STEP_BYTES, read_across_frames=True
    )
    with reader:
        while piece := reader.read(STEP_BYTES):
            yield piece


class _Pieces:
    """The compressed bytes of an archive, with the interface that zstandard requires."""

    def __init__(self, data: Iterator[bytes]) -> None:
        self._data = data
        self._kept = b""

    def read(self, size_bytes: int) -> bytes:
        """Return at most `size_bytes` bytes, and b"" at the end."""
        while not self._kept:
            piece = next(self._data, None)
            if piece is None:
                return b""
            self._kept = piece
        taken, self._kept = self._kept[:size_bytes], self._kept[size_bytes:]
        return taken
