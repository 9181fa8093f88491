"""Ozone's descriptor `<id>.container`: YAML with a replica's facts and the path of its database.

To compute the checksum, Ozone sets `checksum` to 64 NUL characters, which Java's YAML writer
encodes as base64. The checksum is the SHA-256 of the SHA-256 of this text. The module verifies the
text of the file itself, so that the result does not depend on the YAML library.
"""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final

import yaml

from merkle.damaged_data import DamagedData
from merkle.replica import ID_MAX, ContainerId, ReplicaState
from merkle.safe_yaml import PlainLoader
from ozone.disk.unsupported_format import UnsupportedFormat

DESCRIPTOR_BYTES_MAX: Final = 16 * 1024  # Ozone's have one KiB; deeply nested YAML parses slowly
TAG: Final = "KeyValueContainerData"
CONTAINER_TYPE: Final = "KeyValueContainer"
DATABASE_TYPE: Final = "RocksDB"
FILE_PER_BLOCK: Final = 2  # layOutVersion of the only layout that Ozone still writes
SCHEMAS: Final = {"2": 2, "3": 3}
REPLICA_INDEX_MAX: Final = 64  # more shards than any erasure code of Ozone has
_CHECKSUM_LINE: Final = re.compile(rb"^checksum: ([0-9a-f]{64})$", re.MULTILINE)
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/-]*")
_UNSUMMED: Final = b"checksum: !!binary |-\n  " + base64.b64encode(bytes(64))


@dataclass(frozen=True, slots=True, kw_only=True)
class OzoneDescriptor:
    """Fields of a descriptor file.

    `schema` is 3 if the volume has one database, and 2 if each container has its own. `is_verified`
    is False if the file has no checksum. `scanned_at_ms` is the time of Ozone's last scan.
    """

    container_id: ContainerId
    state: ReplicaState
    replica_index: int
    schema: int
    origin_node_id: str
    origin_pipeline_id: str
    scanned_at_ms: int
    is_verified: bool
    bytes_max: int = 0


class _Loader(PlainLoader):
    """A YAML loader with the one additional tag that Ozone writes."""


def _mapping(loader: yaml.SafeLoader, node: yaml.Node) -> dict[Any, Any]:
    if not isinstance(node, yaml.MappingNode):
        raise yaml.YAMLError(f"{TAG} is no mapping")
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(TAG, _mapping)


def decode_descriptor(data: bytes, container_id: ContainerId) -> OzoneDescriptor:
    """Decode the content of a descriptor file.

    Raise DamagedData if it is damaged, and UnsupportedFormat if another release of Ozone wrote it.
    """
    what = f"descriptor of container {container_id}"
    fields = _fields(data, what)
    if fields.get("containerType") != CONTAINER_TYPE:
        raise UnsupportedFormat(f"{what}: a container of type {fields.get('containerType')!r}")
    if fields.get("containerDBType") != DATABASE_TYPE:
        raise UnsupportedFormat(f"{what}: rows in {fields.get('containerDBType')!r}")
    if fields.get("layOutVersion") != FILE_PER_BLOCK:
        raise UnsupportedFormat(f"{what}: layOutVersion {fields.get('layOutVersion')!r}")
    schema = SCHEMAS.get(str(fields.get("schemaVersion")))
    if schema is None:
        raise UnsupportedFormat(f"{what}: schemaVersion {fields.get('schemaVersion')!r}")
    if fields.get("state") not in set(ReplicaState):
        raise UnsupportedFormat(f"{what}: state {fields.get('state')!r}")
    is_verified = _verify(data, fields.get("checksum") is not None, what)
    if fields.get("containerID") != container_id:
        raise DamagedData(f"{what}: it names container {fields.get('containerID')!r}")
    return OzoneDescriptor(
        container_id=container_id,
        state=ReplicaState(fields["state"]),
        replica_index=_number(fields, "replicaIndex", REPLICA_INDEX_MAX, what),
        schema=schema,
        origin_node_id=str(fields.get("originNodeId", "")),
        origin_pipeline_id=str(fields.get("originPipelineId", "")),
        scanned_at_ms=_number(fields, "dataScanTimestamp", ID_MAX, what),
        is_verified=is_verified,
        bytes_max=_number(fields, "maxSize", ID_MAX, what),
    )


def _fields(data: bytes, what: str) -> dict[Any, Any]:
    if len(data) > DESCRIPTOR_BYTES_MAX:
        raise DamagedData(f"{what}: {len(data)} bytes")
    try:
        fields = yaml.load(data, _Loader)  # noqa: S506 - a SafeLoader with one tag more
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError) as error:
        raise DamagedData(f"{what}: not YAML that Ozone writes") from error
    if not isinstance(fields, dict):
        raise DamagedData(f"{what}: no fields")
    try:
        fields.get("state") in set(ReplicaState)  # noqa: B015 - a list is no value of a field
    except TypeError as error:
        raise DamagedData(f"{what}: state is no word") from error
    return fields


def _verify(data: bytes, has_checksum: bool, what: str) -> bool:
    """Return True if `data` has a correct checksum, and False if it has none.

    Raise DamagedData if the checksum is wrong or invalid.
    """
    found = _CHECKSUM_LINE.findall(data)
    if not found and has_checksum:
        raise DamagedData(f"{what}: its checksum is none")
    if not found:
        return False
    if len(found) > 1:
        raise DamagedData(f"{what}: {len(found)} checksums")
    text = _CHECKSUM_LINE.sub(lambda _: _UNSUMMED, data)
    actual = hashlib.sha256(hashlib.sha256(text).digest()).hexdigest()
    written = found[0].decode()
    if actual != written:
        raise DamagedData(f"{what}: checksum {actual[:16]}..., the file says {written[:16]}...")
    return True


def _number(fields: dict[Any, Any], name: str, largest: int, what: str) -> int:
    value = fields.get(name, 0)
    if not isinstance(value, int) or not 0 <= value <= largest:
        raise DamagedData(f"{what}: {name} {value!r}")
    return value


def with_state(data: bytes, state: ReplicaState) -> bytes:
    """Return the text of a descriptor with the state replaced and a new checksum.

    Raise DamagedData if the text does not have exactly one line for the state and one for the
    checksum.
    """
    lines = re.findall(rb"^state: [A-Z_]+$", data, re.MULTILINE)
    if len(lines) != 1 or len(_CHECKSUM_LINE.findall(data)) != 1:
        raise DamagedData("a descriptor without one line of state and one of checksum")
    changed = data.replace(lines[0], b"state: " + state.value.encode())
    text = _CHECKSUM_LINE.sub(lambda _: _UNSUMMED, changed)
    checksum = hashlib.sha256(hashlib.sha256(text).digest()).hexdigest()
    return _CHECKSUM_LINE.sub(lambda _: b"checksum: " + checksum.encode(), changed)


def encode_descriptor(descriptor: OzoneDescriptor, place: str) -> bytes:
    """Return the text of a descriptor in Ozone's format, with its checksum.

    The paths in the text are below `place`. A datanode that imports the container replaces these
    paths by its own. Raise ValueError for a value that would not be one plain line of YAML.
    """
    for text in (place, descriptor.origin_node_id, descriptor.origin_pipeline_id):
        if not _PLAIN.fullmatch(text):
            raise ValueError(f"{text!r} is not plain")
    fields = {
        "chunksPath": f"{place}/chunks",
        "containerDBType": DATABASE_TYPE,
        "containerID": str(descriptor.container_id),
        "containerType": CONTAINER_TYPE,
        "layOutVersion": str(FILE_PER_BLOCK),
        "maxSize": str(descriptor.bytes_max),
        "metadata": "{}",
        "metadataPath": f"{place}/metadata",
        "originNodeId": _text(descriptor.origin_node_id),
        "originPipelineId": _text(descriptor.origin_pipeline_id),
        "replicaIndex": str(descriptor.replica_index),
        "schemaVersion": f"'{descriptor.schema}'",
        "state": descriptor.state.value,
    }
    if not descriptor.replica_index:
        del fields["replicaIndex"]
    lines = "".join(f"{name}: {value}\n" for name, value in fields.items()).encode()
    head = f"!<{TAG}>\n".encode()
    unsummed = head + _UNSUMMED + b"\n" + lines
    checksum = hashlib.sha256(hashlib.sha256(unsummed).digest()).hexdigest()
    return head + f"checksum: {checksum}\n".encode() + lines


def _text(value: str) -> str:
    """Return `value` as a YAML string.

    All values except UUIDs are quoted, so that YAML does not read them as another type.
    """
    is_word = re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", value)
    return value if is_word else json.dumps(value) if value else "''"
