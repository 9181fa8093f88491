"""Output paths for keys. The paths are unique and inside the output directory. No I/O.

A key may contain any characters. Each part between slashes becomes a name that every file system
accepts. Characters other than letters, digits and some signs (`PLAIN`) are written as `%XX`, so
that different parts get different names. Parts with a special meaning (empty, `.`, `..`) are also
escaped. A checksum is added to a path if it is too long, or if it differs from the path of another
key only in upper and lower case.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

PLAIN: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-.,=+@#()[]!&~'"
)
EMPTY: Final = "%"  # name of an empty part
PART_BYTES_MAX: Final = 180  # file systems allow 255; the rest is for suffixes of the name
CUT_BYTES: Final = 120
PATH_BYTES_MAX: Final = 1_000  # length of the complete path; a system call accepts 4,096
PARTS_MAX: Final = 64
LONG: Final = "%long"  # folder for keys whose paths are too long
TOLD_APART: Final = 12  # hex digits of the checksum that makes a path unique


def path_of(key: str) -> str:
    """Return the path for a key, relative to the folder of all keys.

    Two keys may get the same path. `paths_of` makes the paths of several keys different.
    """
    parts = [_part(part) for part in key.split("/")]
    path = "/".join(parts)
    if len(path) > PATH_BYTES_MAX or len(parts) > PARTS_MAX:
        return f"{LONG}/{_checksum_text(key, 64)}"
    return path


def paths_of(keys: Iterable[str]) -> Mapping[str, str]:
    """Return a path for each key. All paths are different, and no path is the folder of another
    path."""
    wanted = {key: path_of(key) for key in sorted(set(keys))}
    folders = {
        "/".join(parts[:count]).casefold()
        for path in wanted.values()
        for parts in [path.split("/")]
        for count in range(1, len(parts))
    }
    taken: set[str] = set()
    paths = {}
    for key, path in wanted.items():
        if path.casefold() in folders or path.casefold() in taken:
            path = f"{path}%~{_checksum_text(key, TOLD_APART)}"
        taken.add(path.casefold())
        paths[key] = path
    return paths


def older(path: str, local_id: int) -> str:
    """Return the path for an older upload of the same key. `local_id` is the id of its last
    block."""
    return f"{path}%~{local_id}"


def _part(part: str) -> str:
    if not part:
        return EMPTY
    if not part.strip("."):
        return "%2E" * len(part) if len(part) * 3 <= PART_BYTES_MAX else _cut("%2E", part)
    # Some file systems drop dots and spaces at the end of a name.
    body = part.rstrip(". ")
    written = "".join(map(_written, body)) + "".join(
        f"%{byte:02X}" for byte in part[len(body) :].encode()
    )
    return written if len(written) <= PART_BYTES_MAX else _cut(written, part)


def _written(character: str) -> str:
    if character in PLAIN:
        return character
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def _cut(written: str, part: str) -> str:
    head = written[:CUT_BYTES]
    whole = head[: len(head) - len(head.rpartition("%")[2]) - 1] if "%" in head[-2:] else head
    return f"{whole}%~{_checksum_text(part, 32)}"


def _checksum_text(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
