"""Reads files that an operator wrote or named on the command line, up to a maximum size."""

import errno
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

SETTINGS_BYTES_MAX: Final = 1024**2  # limit for a client's settings and for certificates
ANSWER_BYTES_MAX: Final = 256 * 1024**2  # limit for a command's output, for millions of containers
PIECE_BYTES: Final = 256 * 1024


def read_up_to(stream: Any, count: int) -> bytes:
    """Return at most `count` bytes of a stream. The stream is read in small pieces, because a
    single read would allocate `count` bytes even if the stream is short."""
    found = bytearray()
    while piece := stream.read(min(PIECE_BYTES, count - len(found))):
        found += piece
    return bytes(found)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raise OSError (EINVAL) for a pipe, a device or a socket.

    The function does not block if the file is a pipe without a writer.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, "not a regular file", str(path))


def decoded(content: bytes) -> str:
    """Return the text of a UTF-8 file, without the byte order mark that some editors add. Raise
    UnicodeDecodeError if the content is not valid UTF-8."""
    return content.decode("utf-8-sig")


def read_file_bounded(path: Path, *, bytes_max: int) -> bytes:
    """Return the content of a file. Raise OSError if the file cannot be read, with errno EFBIG if
    it is longer than `bytes_max`."""
    with path.open("rb") as file:
        content = read_up_to(file, bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"it has more than {bytes_max} bytes", str(path))
    return content
