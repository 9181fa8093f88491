"""The descriptor file `<id>.container` of a replica, for people and for recovery of a lost index.

The file is YAML with sorted keys and Ozone's names. `checksum` is the SHA-256 of the same document
with `checksum` set to 64 zeros. If the descriptor differs from the index, the index is right, and
the descriptor is rewritten.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from agent.store.index.rows import ReplicaRow
from merkle.damaged_data import DamagedData
from merkle.replica import ID_MAX, LAYOUT_VERSION, Bcsid, ContainerId, ReplicaState
from merkle.safe_yaml import PlainLoader
from suture.runtime.durable import TooLarge, read_file, replace_file

DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's dumper if PyYAML has it: the same output, five times as fast."""

UNSUMMED: Final = "0" * 64
_UNSUMMED_TEXT: Final = f"'{UNSUMMED}'".encode()
DESCRIPTOR_BYTES_MAX: Final = 64 * 1024
CONTAINER_TYPE: Final = "KeyValueContainer"

# The exact text that the agent writes, without names that YAML may quote. Matching it avoids YAML
# parsing, which takes half a millisecond; every descriptor of a host is read every few hours.
_NUMBER: Final = rb"(0|[1-9][0-9]{0,18})"
_WORD: Final = rb"(?!(?i:yes|no|on|off|true|false|null)\n)[A-Za-z][A-Za-z0-9-]{0,63}"
_NAME: Final = rb"(%b|[0-9a-f]{8}-[0-9a-f-]{27})" % _WORD
_OURS: Final = re.compile(
    rb"bcsId: %b\nchecksum: ([0-9a-f]{64})\n"
    rb"containerID: %b\ncontainerType: KeyValueContainer\n"
    rb"createdAtMs: %b\nlayOutVersion: %b\noriginNodeId: %b\n"
    rb"replicaIndex: %b\nstate: ([A-Z_]+)\n" % (_NUMBER, _NUMBER, _NUMBER, _NUMBER, _NAME, _NUMBER)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """Fields of a descriptor file.

    `bcsid` is the BCSID of the replica at its last change of state.
    """

    container_id: ContainerId
    state: ReplicaState
    replica_index: int
    bcsid: Bcsid
    origin_datanode_id: str
    created_at_ms: int


def descriptor_of(container_id: ContainerId, row: ReplicaRow) -> Descriptor:
    """Return the descriptor for a replica's row."""
    return Descriptor(
        container_id=container_id,
        state=row.state,
        replica_index=row.replica_index,
        bcsid=row.bcsid,
        origin_datanode_id=row.origin_datanode_id,
        created_at_ms=row.created_at_ms,
    )


def encode_descriptor(descriptor: Descriptor) -> bytes:
    """Return the content of the descriptor file."""
    fields: dict[str, Any] = {
        "bcsId": descriptor.bcsid,
        "containerID": descriptor.container_id,
        "containerType": CONTAINER_TYPE,
        "createdAtMs": descriptor.created_at_ms,
        "layOutVersion": LAYOUT_VERSION,
        "originNodeId": descriptor.origin_datanode_id,
        "replicaIndex": descriptor.replica_index,
        "state": str(descriptor.state),
    }
    return _text_of({**fields, "checksum": _checksum(fields)})


def decode_descriptor(data: bytes, container_id: ContainerId) -> Descriptor:
    """Parse the content of a descriptor file.

    Raise `DamagedData` if it is invalid. The message names the fault.
    """
    what = f"descriptor of container {container_id}"
    if len(data) > DESCRIPTOR_BYTES_MAX:
        raise DamagedData(f"{what}: {len(data)} bytes")
    ours = own_fields(data)
    if ours is not None:
        return _descriptor(ours, container_id, what)
    try:
        fields = yaml.load(data, PlainLoader)  # noqa: S506 - a SafeLoader that takes less
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DamagedData(f"{what}: not YAML") from error
    if not isinstance(fields, dict) or "checksum" not in fields:
        raise DamagedData(f"{what}: no checksum")
    written = fields.pop("checksum")
    try:
        actual = _checksum(fields)
    except (TypeError, ValueError, yaml.YAMLError) as error:
        raise DamagedData(f"{what}: no such fields can have been written") from error
    if written != actual:
        raise DamagedData(f"{what}: checksum {actual}, the file says {written}")
    return _descriptor(fields, container_id, what)


def own_fields(data: bytes) -> dict[str, Any] | None:
    """Return the fields of a file in the exact format that this agent writes.

    Its checksum must be valid. Return None for any other file, which the caller then parses as
    YAML.
    """
    match = _OURS.fullmatch(data)
    if match is None:
        return None
    bcsid, checksum, container_id, created_at_ms, layout, origin, index, state = match.groups()
    before, behind = data[: match.start(2)], data[match.end(2) :]
    if hashlib.sha256(before + _UNSUMMED_TEXT + behind).hexdigest().encode() != checksum:
        return None
    return {
        "bcsId": int(bcsid),
        "containerID": int(container_id),
        "containerType": CONTAINER_TYPE,
        "createdAtMs": int(created_at_ms),
        "layOutVersion": int(layout),
        "originNodeId": origin.decode(),
        "replicaIndex": int(index),
        "state": state.decode(),
    }


def _descriptor(fields: dict[str, Any], container_id: ContainerId, what: str) -> Descriptor:
    if fields.get("layOutVersion") != LAYOUT_VERSION:
        raise DamagedData(f"{what}: layout version {fields.get('layOutVersion')}")
    if fields.get("containerID") != container_id:
        raise DamagedData(f"{what}: it says it is of container {fields.get('containerID')}")
    try:
        descriptor = Descriptor(
            container_id=container_id,
            state=ReplicaState(fields["state"]),
            replica_index=int(fields["replicaIndex"]),
            bcsid=Bcsid(int(fields["bcsId"])),
            origin_datanode_id=str(fields["originNodeId"]),
            created_at_ms=int(fields["createdAtMs"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedData(f"{what}: {error}") from error
    if not 0 <= descriptor.bcsid <= ID_MAX:
        raise DamagedData(f"{what}: bcsId {descriptor.bcsid}")
    return descriptor


def read_descriptor(
    path: Path, container_id: ContainerId, read: Callable[[Path, int, int], bytes] | None = None
) -> Descriptor:
    """Read a descriptor file. `read` replaces the function that reads the bytes.

    Raise `DamagedData` if the content is invalid, and OSError if the file cannot be read.
    """
    try:
        data = read_file(path, bytes_max=DESCRIPTOR_BYTES_MAX, read=read)
    except TooLarge as error:
        raise DamagedData(f"descriptor of container {container_id}: {error.strerror}") from error
    return decode_descriptor(data, container_id)


def write_descriptor(path: Path, descriptor: Descriptor) -> None:
    """Write a descriptor file durably. Replace an existing file atomically."""
    replace_file(path, encode_descriptor(descriptor))


def _text_of(fields: dict[str, Any]) -> bytes:
    text: str = yaml.dump(fields, Dumper=DUMPER, sort_keys=True, default_flow_style=False)
    return text.encode()


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(_text_of({**fields, "checksum": UNSUMMED})).hexdigest()
