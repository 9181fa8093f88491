"""Copies content to store whose length is unknown until it has been read to the end.

A put must know the length of a file before it requests blocks. A pipe has no length. File systems
that generate files on read report no length or a wrong one: /proc and many FUSE and network file
systems report 0, and /sys reports one page. Such content is copied first.
"""

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO, BinaryIO, Final, Self

from suture.client.file_pieces import SourceFile

IN_MEMORY_BYTES_MAX: Final = 4 * 1024**2  # per spool in memory; longer content is written to files
COPY_BYTES: Final = 1024**2
SIZE_READS_MAX: Final = 3  # attempts to copy a file that grows or shrinks during the copy


class Spool:
    """Copies of content of unknown length. Use it as a context manager, which removes the
    copies."""

    def __init__(self) -> None:
        self._memory_left_bytes = IN_MEMORY_BYTES_MAX
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._file_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove all copies from the disk."""
        if self._directory is not None:
            self._directory.cleanup()

    def file(self, key: str, path: Path) -> SourceFile:
        """Return the file at `path` as a source. If the reported size is wrong, the file is copied
        first. Raise OSError if it cannot be read."""
        with path.open("rb") as file:
            size_bytes = _true_size_bytes(file)
            if size_bytes is None:
                return self.stream(key, file)
            return SourceFile(key, path, size_bytes)

    def stream(self, key: str, file: IO[bytes]) -> SourceFile:
        """Copy `file` from its position to its end, and return the copy as a source.

        Raise TypeError if `file` was opened as text, and OSError if it cannot be read or copied.
        """
        head: list[bytes] = []  # a pipe may return less than requested
        left_bytes = self._memory_left_bytes + 1
        while left_bytes and (data := file.read(min(left_bytes, COPY_BYTES))):
            if not isinstance(data, bytes):
                raise TypeError(f"cannot store text under {key}: open the file in mode 'rb'")
            head.append(data)
            left_bytes -= len(data)
        if left_bytes:
            whole = b"".join(head)
            self._memory_left_bytes -= len(whole)
            return SourceFile(key, Path(key), len(whole), whole)
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="suture-put-")
            Path(self._directory.name).chmod(0o700)  # regardless of the umask
        self._file_count += 1
        path = Path(self._directory.name, str(self._file_count))
        with path.open("xb") as copy:
            os.fchmod(copy.fileno(), 0o600)
            copy.writelines(head)
            shutil.copyfileobj(file, copy, COPY_BYTES)
            return SourceFile(key, path, copy.tell())


def _true_size_bytes(file: BinaryIO) -> int | None:
    """Return the size of a regular file in bytes. Return None if the file system reports a wrong
    size.

    The size is wrong if the last byte cannot be read, or if there are bytes after it.
    """
    descriptor = file.fileno()
    for _ in range(SIZE_READS_MAX):
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            return None
        size_bytes = facts.st_size
        has_last = size_bytes == 0 or os.pread(descriptor, 1, size_bytes - 1)
        if has_last and not os.pread(descriptor, 1, size_bytes):
            return size_bytes
        if os.fstat(descriptor).st_size == size_bytes:
            return None
    return None
