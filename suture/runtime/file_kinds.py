"""Describes objects that are found in place of a file or a directory."""

import errno
import os
import stat
from pathlib import Path
from typing import Final

NOTHING: Final = "nothing"
_WORDS: Final = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


def kind_at(path: str | Path, dir_fd: int | None = None) -> str:
    """Return the kind of the object at `path` as text, such as "a directory" or "nothing". A link
    is not followed. Raise OSError if the path cannot be read."""
    try:
        mode = os.lstat(path, dir_fd=dir_fd).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING
    return _WORDS.get(stat.S_IFMT(mode), "no file")


def no_file(path: str | Path, dir_fd: int | None = None) -> FileNotFoundError:
    """Return the error for a path at which another object than a regular file is found. The error
    names the object."""
    try:
        words = kind_at(path, dir_fd)
    except OSError:
        words = "no file"
    return FileNotFoundError(errno.ENOENT, f"{words} is in its place", str(path))


def absence(path: Path, error: OSError) -> str:
    """Return a text for the OSError of a missing file: either the file does not exist, or an object
    of another kind has its name."""
    if isinstance(error, FileNotFoundError) and error.strerror != os.strerror(errno.ENOENT):
        return f"{path.name}: {error.strerror}"
    return f"{path.name} does not exist"
