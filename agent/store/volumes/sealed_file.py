"""Small files of a volume: one line of JSON, and one line with its checksum (CRC32C)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from merkle.checksum import crc32c
from suture.runtime.durable import raise_shortage, read_head


def sealed(fields: Mapping[str, object]) -> bytes:
    """Return the content of a file with these fields and their checksum."""
    body = json.dumps(fields, sort_keys=True).encode()
    return body + b"\n" + f"{crc32c(body):08x}\n".encode()


def read_sealed(path: Path, bytes_max: int) -> dict[str, Any] | None:
    """Return the fields of the file, or None if it is missing, damaged or cannot be read.

    Raise `UnavailableError(BUSY)` if the host is short of descriptors or memory, because the file
    may then be intact.
    """
    try:
        data = read_head(path, bytes_max)
    except OSError as error:
        raise_shortage(error, path)
        return None
    body, _, seal = data.partition(b"\n")
    if seal != f"{crc32c(body):08x}\n".encode():
        return None
    fields: dict[str, Any] = json.loads(body)
    return fields
