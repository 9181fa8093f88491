"""Ozone's descriptors: read, verified, and refused by name."""

from collections.abc import Callable
from typing import Any

import pytest

from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId, ReplicaState
from ozone.disk.descriptor import decode_descriptor
from ozone.disk.unsupported_format import UnsupportedFormat
from tests.support.ozone.ozone_volumes import descriptor_text

HERE = ContainerId(3)
FIELDS: dict[str, Any] = {
    "containerDBType": "RocksDB",
    "containerID": 3,
    "containerType": "KeyValueContainer",
    "layOutVersion": 2,
    "metadata": "{}",
    "originNodeId": "d53984aa-2ff2-43a5-9dca-7d8a07666af4",
    "replicaIndex": 5,
    "schemaVersion": "'3'",
    "state": "CLOSED",
}


def test_a_descriptor_is_read_and_verified() -> None:
    """The result has the state, the replica index and the schema, and that the checksum fits."""
    found = decode_descriptor(descriptor_text(FIELDS), HERE)

    assert (ReplicaState.CLOSED, 5, 3, True) == (
        found.state,
        found.replica_index,
        found.schema,
        found.is_verified,
    )


def test_changed_letter_of_a_descriptor_is_detected() -> None:
    """The checksum covers every field."""
    text = descriptor_text(FIELDS).replace(b"replicaIndex: 5", b"replicaIndex: 4")

    with pytest.raises(DamagedData, match=r"checksum .* the file says"):
        decode_descriptor(text, HERE)


def test_a_descriptor_without_a_checksum_is_not_called_verified() -> None:
    """Without Ozone's checksum the fields are taken as they are."""
    text = b"".join(
        line
        for line in descriptor_text(FIELDS).splitlines(keepends=True)
        if not line.startswith(b"checksum")
    )

    assert not decode_descriptor(text, HERE).is_verified


@pytest.mark.parametrize(
    "damaged",
    [
        lambda line: line.replace(b": ", b": t"),
        lambda line: line[:-1],
        lambda line: line[:10] + bytes([line[10] ^ 0x40]) + line[11:],
        lambda _: b"checksum: 0",
    ],
)
def test_a_checksum_that_is_damaged_itself_is_seen(damaged: Callable[[bytes], bytes]) -> None:
    """
    Taken for none, it would vouch for nothing: Ozone does not load such a container.
    """
    text = descriptor_text(FIELDS)
    (line,) = [line for line in text.splitlines() if line.startswith(b"checksum: ")]

    with pytest.raises(DamagedData, match="checksum is none"):
        decode_descriptor(text.replace(line, damaged(line)), HERE)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"schemaVersion": "'1'"}, "schemaVersion '1'"),
        ({"layOutVersion": 1}, "layOutVersion 1"),
        ({"containerType": "Other"}, "a container of type 'Other'"),
        ({"containerDBType": "LevelDB"}, "rows in 'LevelDB'"),
        ({"state": "MELTED"}, "state 'MELTED'"),
    ],
)
def test_descriptor_of_another_ozone_version_is_unknown(changed: dict[str, Any], why: str) -> None:
    """A sound descriptor of an unknown kind is no damage."""
    with pytest.raises(UnsupportedFormat, match=why):
        decode_descriptor(descriptor_text({**FIELDS, **changed}), HERE)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "no fields"),
        (b"- a list", "no fields"),
        (b"!<KeyValueContainerData> text", "not YAML"),
        (b"!<tag:other> {}", "not YAML"),
        (b"a: [", "not YAML"),
        (b"[" * 5_000, "not YAML"),
        (b"x" * 70_000, "70000 bytes"),
        (b"state: [CLOSED]", "state is no word"),
        (descriptor_text({**FIELDS, "replicaIndex": -1}), "replicaIndex -1"),
        (descriptor_text({**FIELDS, "containerID": 4}), "it names container 4"),
    ],
)
def test_invalid_ozone_descriptor_is_damaged(text: bytes, why: str) -> None:
    """The error says how."""
    with pytest.raises(DamagedData, match=why):
        decode_descriptor(text, HERE)


@pytest.mark.parametrize(
    "text",
    [
        "metadata: " + "[" * 100 + "]" * 100,
        "metadata: " + "{a: " * 100 + "}" * 100,
        "a: &a {x: 1}\nb: {<<: [*a, *a]}",
        "a: &a [1]\nmetadata: *a",
    ],
)
def test_yaml_that_grows_when_it_is_read_is_not_read(text: str) -> None:
    """
    Ozone writes nothing that nests deep or refers to another place: a few hundred bytes that do
    would take hours, and all memory.
    """
    text = f"{descriptor_text(FIELDS).decode()}{text}\n"

    with pytest.raises(DamagedData, match="not YAML that Ozone writes"):
        decode_descriptor(text.encode(), HERE)
