"""Under which path a key's file is written: always inside, always its own. Pure.

A key is whatever a client chose. Each part between slashes becomes a name that every file system
takes: what is no letter, digit or harmless sign is written as `%XX`, so no two parts become one; a
part that means something to a file system (empty, `.`, `..`) is written out likewise. What is too
long is cut, and told apart by a checksum; so is what would meet another key's path, also on a file
system that does not tell `a` from `A`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

PLAIN: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-.,=+@#()[]!&~'"
)
EMPTY: Final = "%"  # of a part without characters
PART_BYTES_MAX: Final = 180  # file systems take 255; a suffix and the name while it grows go on top
CUT_BYTES: Final = 120
PATH_BYTES_MAX: Final = 1_000  # of all parts; a system call takes 4,096
PARTS_MAX: Final = 64
LONG: Final = "%long"  # the folder of keys whose paths are too long
TOLD_APART: Final = 12  # hex digits of a checksum


def path_of(key: str) -> str:
    """Return the path of a key below the folder of all keys, by itself."""
    parts = [_part(part) for part in key.split("/")]
    path = "/".join(parts)
    if len(path) > PATH_BYTES_MAX or len(parts) > PARTS_MAX:
        return f"{LONG}/{_checksum_text(key, 64)}"
    return path


def paths_of(keys: Iterable[str]) -> Mapping[str, str]:
    """Return a path for each key: no two are one, and none is a folder of another."""
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
    """Return the path of an older put of the same key."""
    return f"{path}%~{local_id}"


def _part(part: str) -> str:
    if not part:
        return EMPTY
    if not part.strip("."):
        return "%2E" * len(part) if len(part) * 3 <= PART_BYTES_MAX else _cut("%2E", part)
    # A file system of another kind drops dots and spaces at the end of a name.
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
