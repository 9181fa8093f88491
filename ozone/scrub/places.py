"""Rules for the files, directories and other objects that are found on an Ozone volume.

A place is a path that Ozone uses for a file or directory of a container. `RULES` has the result for
each place, for each kind of object there, and for each case whether the database has rows of the
container or block. docs/OZONE_REFERENCE.md shows this table, and
tests/integration/ozone/test_ozone_places.py tests each cell.

Ozone follows symbolic links. Therefore, a link to the expected kind of file is read like the file.
A link in the place of a block file makes the container DOUBTFUL, because Ozone never creates such a
link, and a repair would write through it.
"""

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from scanner.finding import DamageFault
from suture.runtime.file_kinds import NOTHING, kind_at


class PathRole(StrEnum):
    """The purpose of a path that Ozone uses, such as a descriptor or a block file.

    In a rule, the rows of a block file are the rows of its block. The rows of the other paths are
    those of the container.
    """

    CONTAINER = "container directory"
    DESCRIPTOR = "`<id>.container`"
    TREE = "`<id>.tree`"
    CHUNKS = "`chunks`"
    BLOCK = "`<block>.block`"


class FileKind(StrEnum):
    """The kind of file system object that is at a path."""

    NOTHING = "nothing"
    EMPTY = "directory without any file"  # distinguished from DIRECTORY for containers only
    DIRECTORY = "directory"
    FILE = "file"
    LINK = "link to what belongs there"
    OTHER = "something else"  # a pipe, a socket, a device, or a dangling link


class PathVerdict(StrEnum):
    """The result for a container that follows from the kind of object at one of its paths."""

    SILENT = "-"  # nothing is reported
    READ = "read"  # the data is read, and determines the result
    NOTED = "noted"  # a finding without loss of data
    SKIPPED = "SKIPPED"
    DOUBTFUL = "DOUBTFUL"
    NOT_READ = "NOT_READ"
    MISSING = "MISSING"
    DAMAGED = "DAMAGED"


@dataclass(frozen=True, slots=True)
class PathRule:
    """A result for a container, and the fault to report.

    `fault` is None if there is nothing to report.
    """

    ruling: PathVerdict
    fault: DamageFault | None = None


def _noted(fault: DamageFault) -> PathRule:
    return PathRule(PathVerdict.NOTED, fault)


def _damaged(fault: DamageFault) -> PathRule:
    return PathRule(PathVerdict.DAMAGED, fault)


_SILENT: Final = PathRule(PathVerdict.SILENT)
_READ: Final = PathRule(PathVerdict.READ)
_NOT_READ: Final = PathRule(PathVerdict.NOT_READ)
_MISSING: Final = PathRule(PathVerdict.MISSING)
_NO_FILE: Final = _damaged(DamageFault.BLOCK_FILE_MISSING)
_NO_CHUNKS: Final = _damaged(DamageFault.CHUNKS_DIRECTORY_MISSING)


def _whatever(rule: PathRule) -> tuple[PathRule, PathRule]:
    """Return `rule` twice, as the cell of a table.

    The same rule then applies with and without rows.
    """
    return (rule, rule)


RULES: Final[Mapping[PathRole, Mapping[FileKind, tuple[PathRule, PathRule]]]] = {
    PathRole.CONTAINER: {
        FileKind.NOTHING: (_SILENT, _MISSING),
        FileKind.EMPTY: (PathRule(PathVerdict.SKIPPED), _MISSING),
        FileKind.DIRECTORY: _whatever(_READ),
        FileKind.FILE: (_NOT_READ, _MISSING),
        FileKind.LINK: _whatever(_READ),
        FileKind.OTHER: (_NOT_READ, _MISSING),
    },
    PathRole.DESCRIPTOR: {
        FileKind.NOTHING: _whatever(_damaged(DamageFault.DESCRIPTOR_MISSING)),
        FileKind.DIRECTORY: _whatever(_damaged(DamageFault.DESCRIPTOR_DAMAGED)),
        FileKind.FILE: _whatever(_READ),
        FileKind.LINK: _whatever(_READ),
        FileKind.OTHER: _whatever(_damaged(DamageFault.DESCRIPTOR_DAMAGED)),
    },
    PathRole.TREE: {
        FileKind.NOTHING: _whatever(_noted(DamageFault.TREE_MISSING)),
        FileKind.DIRECTORY: _whatever(_noted(DamageFault.TREE_DAMAGED)),
        FileKind.FILE: _whatever(_READ),
        FileKind.LINK: _whatever(_READ),
        FileKind.OTHER: _whatever(_noted(DamageFault.TREE_DAMAGED)),
    },
    PathRole.CHUNKS: {
        FileKind.NOTHING: (_SILENT, _NO_CHUNKS),  # Ozone creates it at its start (HDDS-6235)
        FileKind.DIRECTORY: _whatever(_READ),
        FileKind.FILE: _whatever(_NO_CHUNKS),
        FileKind.LINK: _whatever(_READ),
        FileKind.OTHER: _whatever(_NO_CHUNKS),
    },
    PathRole.BLOCK: {
        FileKind.NOTHING: (_SILENT, _NO_FILE),
        FileKind.DIRECTORY: (_noted(DamageFault.FOREIGN_FILE), _NO_FILE),
        FileKind.FILE: (_noted(DamageFault.BLOCK_ROW_MISSING), _READ),
        FileKind.LINK: (
            _noted(DamageFault.FOREIGN_FILE),
            PathRule(PathVerdict.DOUBTFUL, DamageFault.BLOCK_FILE_LINK),
        ),
        FileKind.OTHER: (_noted(DamageFault.FOREIGN_FILE), _NO_FILE),
    },
}
"""The rules by purpose of the path and kind of object there. Each pair has the rule without rows
and the rule with rows in the database."""

_DIRECTORIES: Final = frozenset({PathRole.CONTAINER, PathRole.CHUNKS})
_NOWHERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass(frozen=True, slots=True)
class Found:
    """The kind of object that was found at a path, and a description of it for messages."""

    kind: FileKind
    words: str


def inspect_path(place: PathRole, path: Path, dir_fd: int | None = None) -> Found:
    """Return the kind of object at `path`. `place` is the purpose of the path.

    Raise OSError if the object cannot be accessed.
    """
    words = kind_at(path, dir_fd)
    if words == NOTHING:
        return Found(FileKind.NOTHING, words)
    try:
        mode = os.stat(path, dir_fd=dir_fd).st_mode
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        return Found(FileKind.OTHER, f"{words} that leads to nothing")
    is_link = words == "a symbolic link"
    if stat.S_ISDIR(mode):
        if place is PathRole.CONTAINER and is_empty(path):
            return Found(FileKind.EMPTY, "an empty directory")
        kind = FileKind.DIRECTORY
    else:
        kind = FileKind.FILE if stat.S_ISREG(mode) else FileKind.OTHER
    belongs = FileKind.DIRECTORY if place in _DIRECTORIES else FileKind.FILE
    if is_link and kind is belongs:
        kind = FileKind.LINK
    elif is_link:
        words = f"{words} to something else"
    return Found(kind, words)


def is_empty(directory: Path) -> bool:
    """Return whether a directory tree contains nothing but directories.

    Raise OSError if it cannot be listed.
    """
    with os.scandir(directory) as entries:
        return all(
            entry.is_dir(follow_symlinks=False) and is_empty(Path(entry.path)) for entry in entries
        )


def rule_of(place: PathRole, kind: FileKind, *, has_rows: bool) -> PathRule:
    """Return the rule for an object of kind `kind` at a path with the purpose `place`."""
    return RULES[place][kind][has_rows]
