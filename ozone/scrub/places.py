"""The verdicts on what is found in each place of a volume.

A place is a name that Ozone gives to a file or directory. The database has rows about it, or none:
`RULES` has the verdict of each combination. docs/OZONE.md shows the table, and
tests/integration/ozone/test_ozone_places.py tries each cell.

Ozone follows symbolic links, so a link to the right kind of file is read like the file. The
exception is a block file: Ozone never makes it a link, and a repair would write through it.
"""

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from agent.store.files.kinds import NOTHING, kind_at
from scanner.finding import DamageFault


class Place(StrEnum):
    """A name that Ozone gives. Its rows are those of the container, or of the block."""

    CONTAINER = "container directory"
    DESCRIPTOR = "`<id>.container`"
    TREE = "`<id>.tree`"
    CHUNKS = "`chunks`"
    BLOCK = "`<block>.block`"


class Kind(StrEnum):
    """The kind of file found in a place."""

    NOTHING = "nothing"
    EMPTY = "directory without any file"  # distinguished for containers only
    DIRECTORY = "directory"
    FILE = "file"
    LINK = "link to what belongs there"
    OTHER = "something else"  # a pipe, a socket, a device, or a dangling link


class Ruling(StrEnum):
    """The verdict on a container for what is found in a place."""

    SILENT = "-"  # nothing is reported
    READ = "read"  # its contents are read, and its bytes have the verdict
    NOTED = "noted"  # a finding that costs no data
    SKIPPED = "SKIPPED"
    DOUBTFUL = "DOUBTFUL"
    NOT_READ = "NOT_READ"
    MISSING = "MISSING"
    DAMAGED = "DAMAGED"


@dataclass(frozen=True, slots=True)
class Rule:
    """A verdict, and the fault of its finding if it has one."""

    ruling: Ruling
    fault: DamageFault | None = None


def _noted(fault: DamageFault) -> Rule:
    return Rule(Ruling.NOTED, fault)


def _damaged(fault: DamageFault) -> Rule:
    return Rule(Ruling.DAMAGED, fault)


_SILENT: Final = Rule(Ruling.SILENT)
_READ: Final = Rule(Ruling.READ)
_NOT_READ: Final = Rule(Ruling.NOT_READ)
_MISSING: Final = Rule(Ruling.MISSING)
_NO_FILE: Final = _damaged(DamageFault.BLOCK_FILE_MISSING)
_NO_CHUNKS: Final = _damaged(DamageFault.CHUNKS_DIRECTORY_MISSING)


def _whatever(rule: Rule) -> tuple[Rule, Rule]:
    """Return a rule that does not depend on rows."""
    return (rule, rule)


RULES: Final[Mapping[Place, Mapping[Kind, tuple[Rule, Rule]]]] = {
    Place.CONTAINER: {
        Kind.NOTHING: (_SILENT, _MISSING),
        Kind.EMPTY: (Rule(Ruling.SKIPPED), _MISSING),
        Kind.DIRECTORY: _whatever(_READ),
        Kind.FILE: (_NOT_READ, _MISSING),
        Kind.LINK: _whatever(_READ),
        Kind.OTHER: (_NOT_READ, _MISSING),
    },
    Place.DESCRIPTOR: {
        Kind.NOTHING: _whatever(_damaged(DamageFault.DESCRIPTOR_MISSING)),
        Kind.DIRECTORY: _whatever(_damaged(DamageFault.DESCRIPTOR_DAMAGED)),
        Kind.FILE: _whatever(_READ),
        Kind.LINK: _whatever(_READ),
        Kind.OTHER: _whatever(_damaged(DamageFault.DESCRIPTOR_DAMAGED)),
    },
    Place.TREE: {
        Kind.NOTHING: _whatever(_noted(DamageFault.TREE_MISSING)),
        Kind.DIRECTORY: _whatever(_noted(DamageFault.TREE_DAMAGED)),
        Kind.FILE: _whatever(_READ),
        Kind.LINK: _whatever(_READ),
        Kind.OTHER: _whatever(_noted(DamageFault.TREE_DAMAGED)),
    },
    Place.CHUNKS: {
        Kind.NOTHING: (_SILENT, _NO_CHUNKS),  # Ozone creates it at its start (HDDS-6235)
        Kind.DIRECTORY: _whatever(_READ),
        Kind.FILE: _whatever(_NO_CHUNKS),
        Kind.LINK: _whatever(_READ),
        Kind.OTHER: _whatever(_NO_CHUNKS),
    },
    Place.BLOCK: {
        Kind.NOTHING: (_SILENT, _NO_FILE),
        Kind.DIRECTORY: (_noted(DamageFault.FOREIGN_FILE), _NO_FILE),
        Kind.FILE: (_noted(DamageFault.BLOCK_ROW_MISSING), _READ),
        Kind.LINK: (
            _noted(DamageFault.FOREIGN_FILE),
            Rule(Ruling.DOUBTFUL, DamageFault.BLOCK_FILE_LINK),
        ),
        Kind.OTHER: (_noted(DamageFault.FOREIGN_FILE), _NO_FILE),
    },
}
"""By place and kind: the rule without rows, the rule with rows."""

_DIRECTORIES: Final = frozenset({Place.CONTAINER, Place.CHUNKS})
_NOWHERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass(frozen=True, slots=True)
class Found:
    """The content found in a place, with a description."""

    kind: Kind
    words: str


def look(place: Place, path: Path, dir_fd: int | None = None) -> Found:
    """Return what is in a place. Raise OSError."""
    words = kind_at(path, dir_fd)
    if words == NOTHING:
        return Found(Kind.NOTHING, words)
    try:
        mode = os.stat(path, dir_fd=dir_fd).st_mode
    except OSError as error:
        if error.errno not in _NOWHERE:
            raise
        return Found(Kind.OTHER, f"{words} that leads to nothing")
    is_link = words == "a symbolic link"
    if stat.S_ISDIR(mode):
        if place is Place.CONTAINER and is_empty(path):
            return Found(Kind.EMPTY, "an empty directory")
        kind = Kind.DIRECTORY
    else:
        kind = Kind.FILE if stat.S_ISREG(mode) else Kind.OTHER
    belongs = Kind.DIRECTORY if place in _DIRECTORIES else Kind.FILE
    if is_link and kind is belongs:
        kind = Kind.LINK
    elif is_link:
        words = f"{words} to something else"
    return Found(kind, words)


def is_empty(directory: Path) -> bool:
    """Return True if a directory and those below it contain no file. Raise OSError."""
    with os.scandir(directory) as entries:
        return all(
            entry.is_dir(follow_symlinks=False) and is_empty(Path(entry.path)) for entry in entries
        )


def rule_of(place: Place, kind: Kind, *, has_rows: bool) -> Rule:
    """Return the rule for what is in a place."""
    return RULES[place][kind][has_rows]
