"""The descriptor: its checksum is checked, and every way of being wrong is one error."""

import hashlib
from dataclasses import replace

import pytest
import yaml

from agent.store.replica.descriptor import Descriptor, decode_descriptor, encode_descriptor
from merkle.damaged_data import DamagedData
from merkle.replica import Bcsid, ContainerId, ReplicaState

SEVEN = ContainerId(7)
DESCRIPTOR = Descriptor(
    container_id=SEVEN,
    state=ReplicaState.QUASI_CLOSED,
    replica_index=3,
    bcsid=Bcsid(12),
    origin_datanode_id="dn-1",
    created_at_ms=1_700_000_000_000,
)


def signed(fields: dict[str, object]) -> bytes:
    """Return a document with the checksum that these fields call for."""
    unsummed = yaml.safe_dump({**fields, "checksum": "0" * 64}, sort_keys=True).encode()
    checksum = hashlib.sha256(unsummed).hexdigest()
    return yaml.safe_dump({**fields, "checksum": checksum}, sort_keys=True).encode()


def fields_of() -> dict[str, object]:
    """The fields of a good descriptor."""
    fields: dict[str, object] = yaml.safe_load(encode_descriptor(DESCRIPTOR))
    del fields["checksum"]
    return fields


@pytest.mark.parametrize("state", list(ReplicaState))
def test_descriptor_is_read_back_in_every_state(state: ReplicaState) -> None:
    """Encoding and decoding keep every field."""
    descriptor = replace(DESCRIPTOR, state=state)

    assert descriptor == decode_descriptor(encode_descriptor(descriptor), SEVEN)


def test_descriptor_checksum_can_be_computed_with_other_tools() -> None:
    """The checksum is the SHA-256 of the document with 64 zeros for the checksum:
    docs/DISK_FORMAT.md.
    """
    assert encode_descriptor(DESCRIPTOR) == signed(fields_of())


def test_any_changed_letter_is_seen() -> None:
    """A changed byte never makes the descriptor read as another value."""
    data = encode_descriptor(DESCRIPTOR)

    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 0x01
        try:
            read = decode_descriptor(bytes(flipped), SEVEN)
        except DamagedData:
            continue
        assert DESCRIPTOR == read, "only what YAML does not see may differ"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"containerID": 8}, "it says it is of container 8"),
        ({"layOutVersion": 2}, "layout version 2"),
        ({"state": "ASLEEP"}, "ASLEEP"),
        ({"bcsId": -1}, "bcsId -1"),
        ({"replicaIndex": "many"}, "many"),
        ({"originNodeId": None, "createdAtMs": None}, "NoneType"),
    ],
)
def test_a_whole_descriptor_that_says_nonsense_is_damaged(
    change: dict[str, object], message: str
) -> None:
    """
    A checksum proves that a writer meant it, not that it makes sense.
    """
    with pytest.raises(DamagedData, match=message):
        decode_descriptor(signed({**fields_of(), **change}), SEVEN)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff" * 50,
        b"- a list\n",
        b"checksum: 1\n",
        b"{" * 5000,
        b"state: !!python/object/apply:os.getpid []\n",
        b"x: 1\n" * 20_000,
    ],
)
def test_invalid_descriptor_is_damaged(data: bytes) -> None:
    """The text is torn, foreign, hostile or far too long."""
    with pytest.raises(DamagedData, match="container 7"):
        decode_descriptor(data, SEVEN)


@pytest.mark.parametrize(
    "text",
    [
        "more: " + "[" * 100 + "]" * 100,
        "a: &a {x: 1}\nb: {<<: [*a, *a]}",
        "a: &a [1]\nb: *a",
    ],
)
def test_yaml_that_grows_when_it_is_read_is_not_read(text: str) -> None:
    """Aliases and deep nesting may take hours and all memory, whatever the size of the text."""
    with pytest.raises(DamagedData, match="not YAML"):
        decode_descriptor(f"{signed(fields_of()).decode()}{text}\n".encode(), SEVEN)
