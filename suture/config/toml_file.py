"""Loads a TOML file and its drop-in files, and records the line of every value.

The loader reads `agent.toml`, then the files of `conf.d/` in the order of their names. A key in a
later file overrides the same key in an earlier file.

Python's TOML parser reports no line numbers. Therefore, the loader parses the file a second time,
statement by statement, to find the line on which each statement begins. The values come from a
parse of the complete file.
"""

import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from suture.config.bounded_read import decoded, open_regular
from suture.errors import Code, RefusedError

DROP_INS: Final = "conf.d"
FILE_BYTES_MAX: Final = 1024**2  # a larger file is not a config
DROP_IN_COUNT_MAX: Final = 100

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """The file and the line of a value."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(slots=True)
class ParsedConfig:
    """The merged content of all files. `places` has the file and line of each key and table."""

    paths: list[Path] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, SourceLocation] = field(default_factory=dict)

    def place_of(self, key: Key) -> SourceLocation | None:
        """Return the file and line of `key`. If no file sets `key`, return those of the innermost
        table that would contain it; None if there is none."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.places:
                return self.places[key[:length]]
        return None

    def located(self, *keys: Key) -> str:
        """Return a text with the name of each option, and its file and line or `(default)`."""
        texts = []
        for key in keys:
            place = self.places.get(key)
            texts.append(f"{place} {'.'.join(key)}" if place else f"{'.'.join(key)} (default)")
        return ", ".join(texts)


def read(path: Path) -> ParsedConfig:
    """Read the file `path` and its drop-in files. Raise RefusedError(INVALID_CONFIG) if a file is
    invalid. The message names the file and the line."""
    return read_each([path, *drop_ins(path)])


def read_each(paths: Sequence[Path]) -> ParsedConfig:
    """Read several files. Values of later files override values of earlier ones. Raise
    RefusedError(INVALID_CONFIG) if a file cannot be read or parsed. The message names the file."""
    written = ParsedConfig()
    for each in paths:
        text = _text(each)
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise RefusedError(Code.INVALID_CONFIG, f"config file {each}: {error}") from error
        written.paths.append(each)
        written.places.update((key, SourceLocation(each, line)) for key, line in places(text))
        _merge(written.values, values)
    return written


def drop_ins(path: Path) -> list[Path]:
    """Return the drop-in files of a config file, in the order in which they are read. Raise
    RefusedError(INVALID_CONFIG) if there are too many."""
    files = (path.parent / DROP_INS).glob("*.toml")
    found = sorted(file for file in files if not file.name.startswith("."))  # skip editors' locks
    if len(found) > DROP_IN_COUNT_MAX:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"{path.parent / DROP_INS} has {len(found)} files; at most {DROP_IN_COUNT_MAX}",
        )
    return found


def places(text: str) -> Iterator[tuple[Key, int]]:
    """Yield (key, line) for every table and key of a valid TOML text. The line is the one on which
    the statement begins."""
    table: Key = ()
    statement, begins = "", 1
    for number, line in enumerate(text.splitlines(), start=1):
        if not statement:
            begins = number
        statement += line + "\n"
        try:
            found = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # the statement continues on the next line
        if statement.lstrip().startswith("["):
            table = _only_path(found)
            yield table, begins
        else:
            for key in _paths(found):
                yield (*table, *key), begins
        statement = ""


def _only_path(header: Mapping[str, Any]) -> Key:
    path: Key = ()
    inner: Any = header
    while isinstance(inner, dict) and inner:
        [(name, inner)] = inner.items()
        path = (*path, name)
    return path


def _paths(values: Mapping[str, Any]) -> Iterator[Key]:
    for name, value in values.items():
        yield (name,)
        if isinstance(value, dict):
            for inner in _paths(value):
                yield (name, *inner)


def _merge(values: dict[str, Any], later: Mapping[str, Any]) -> None:
    for name, value in later.items():
        mine = values.get(name)
        if isinstance(mine, dict) and isinstance(value, dict):
            _merge(mine, value)
        else:
            values[name] = value


def _text(path: Path) -> str:
    try:
        with open_regular(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise RefusedError(
            Code.INVALID_CONFIG, f"cannot read config file {path}: {error.strerror}"
        ) from error
    if mode & stat.S_IWOTH:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot use config file {path}: its mode {mode:04o} lets every user change it",
            hint=f"chmod o-w {path}",
        )
    if len(content) > FILE_BYTES_MAX:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot read config file {path}: it has more than {FILE_BYTES_MAX} bytes",
        )
    try:
        return decoded(content)
    except UnicodeDecodeError as error:
        raise RefusedError(Code.INVALID_CONFIG, f"config file {path}: {error}") from error
