"""The manifest of a backup, `manifest.json`: its source and the checksum of its bytes.

The manifest is the last file of a backup that is written. Then the directory is renamed. A
directory without a manifest is not a backup. The manifest contains a checksum of itself, so a
cluster id or a time that the disk corrupted is detected.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from scm.state.state_environment import DATA
from suture.errors import Code, RefusedError

NAME: Final = "manifest.json"
FORMAT: Final = 1
STATE: Final = "state"  # the folder with the copy
BYTES_MAX: Final = 1024**2
READ_BYTES: Final = 1024**2


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """The facts about a backup.

    `counts` is the number of rows of each table. `sha256` and `size_bytes` are the checksum and the
    size of the copied state file.
    """

    cluster_id: str
    taken_at_ms: int
    suture_version: str
    format_version: int  # format version of the state
    term: int
    counters: dict[str, int]
    counts: dict[str, int]
    sha256: str
    size_bytes: int

    def encoded(self) -> bytes:
        """Return the contents of `manifest.json`, including a checksum of the manifest itself."""
        facts = {"format": FORMAT, **asdict(self)}
        facts["checksum"] = _checksum(facts)
        return json.dumps(facts, indent=2, sort_keys=True).encode() + b"\n"


def read_manifest(backup: Path) -> BackupManifest:
    """Read and return the manifest of a backup.

    Raise RefusedError if the manifest is missing or invalid; the error names the reason.
    """
    path = backup / NAME
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX)
    except FileNotFoundError as error:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"cannot read backup {backup}: it has no {NAME}",
            hint="name a directory that suture scm backup created; it has the time in its name",
        ) from error
    try:
        return _decoded(data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(Code.INCONSISTENT_VOLUME, f"{path} is damaged: {error}") from error


def _decoded(data: bytes) -> BackupManifest:
    facts = json.loads(data)
    if facts.pop("checksum") != _checksum(facts):
        raise ValueError("it does not match its own checksum")
    version = facts.pop("format")
    if version != FORMAT:
        raise ValueError(f"format {version} is not supported, expected {FORMAT}")
    return BackupManifest(**facts)


def check_bytes(backup: Path, manifest: BackupManifest) -> None:
    """Read the state file of a backup. Raise RefusedError if it does not match the manifest."""
    path = backup / STATE / DATA
    try:
        found, size_bytes = sha256_of(path)
    except FileNotFoundError as error:
        raise RefusedError(
            Code.INCONSISTENT_VOLUME, f"{backup} is damaged: {path} is missing"
        ) from error
    if (found, size_bytes) != (manifest.sha256, manifest.size_bytes):
        raise RefusedError(
            Code.INCONSISTENT_VOLUME,
            f"{backup} is damaged: {path} has {size_bytes} bytes with SHA-256 {found}, "
            f"its manifest says {manifest.size_bytes} bytes with {manifest.sha256}",
            hint="take another backup",
        )


def sha256_of(path: Path) -> tuple[str, int]:
    """Return the SHA-256 of a file in hexadecimal, and the size of the file in bytes."""
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
            size_bytes += len(data)
    return digest.hexdigest(), size_bytes


def _checksum(facts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
