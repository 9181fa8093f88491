"""A descriptor that is read without YAML says what YAML reads in it."""

from typing import Any

import pytest
import yaml
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agent.store.replica.descriptor import (
    Descriptor,
    decode_descriptor,
    encode_descriptor,
    own_fields,
)
from merkle.replica import ID_MAX, Bcsid, ContainerId, ReplicaState

IDS = st.integers(0, ID_MAX)
WORDS = st.sampled_from(["yes", "No", "OFF", "null", "NULL", "1e3", "0x1f", "12", "012", "~"])
NAMES = WORDS | st.uuids().map(str) | st.text(max_size=5) | st.from_regex(r"[A-Za-z][a-z-]{0,9}")
DESCRIPTORS = st.builds(
    Descriptor,
    container_id=IDS.map(ContainerId),
    state=st.sampled_from(ReplicaState),
    replica_index=st.integers(0, 255),
    bcsid=IDS.map(Bcsid),
    origin_datanode_id=NAMES,
    created_at_ms=IDS,
)
BUILT_LIKE_OURS = "12345678-1234-1234-1234-123456789012"


def by_yaml(data: bytes) -> dict[str, Any]:
    """Return the fields as YAML reads them."""
    fields: dict[str, Any] = yaml.safe_load(data)
    del fields["checksum"]
    return fields


@given(DESCRIPTORS)
def test_written_descriptor_is_read_back(descriptor: Descriptor) -> None:
    """The origin may have any name."""
    assert descriptor == decode_descriptor(encode_descriptor(descriptor), descriptor.container_id)


@given(DESCRIPTORS)
def test_libyaml_and_python_write_the_same_descriptor(descriptor: Descriptor) -> None:
    """The checksum is computed over the text, so both must write and accept the same one. Only
    names that a datanode may have are drawn.
    """
    assume(descriptor.origin_datanode_id.isascii() and descriptor.origin_datanode_id.isprintable())
    data = encode_descriptor(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agent.store.replica.descriptor.DUMPER", yaml.SafeDumper)

        assert data == encode_descriptor(descriptor)
        assert descriptor == decode_descriptor(data, descriptor.container_id)


@given(DESCRIPTORS)
def test_without_yaml_the_same_is_read(descriptor: Descriptor) -> None:
    """The fast reader gives the same fields as YAML, and leaves ambiguous names to YAML."""
    data = encode_descriptor(descriptor)

    fields = own_fields(data)

    assert fields is None or by_yaml(data) == fields


@given(DESCRIPTORS, st.integers(0, 10_000), st.integers(1, 255))
@example(
    Descriptor(
        container_id=ContainerId(1),
        state=ReplicaState.CLOSED,
        replica_index=0,
        bcsid=Bcsid(1),
        origin_datanode_id=BUILT_LIKE_OURS,
        created_at_ms=1,
    ),
    7,
    1,
)
def test_a_changed_byte_is_never_read_quickly(descriptor: Descriptor, at: int, by: int) -> None:
    """Its checksum is that of what was written: YAML is to say what is wrong."""
    data = bytearray(encode_descriptor(descriptor))
    data[at % len(data)] ^= by

    assert own_fields(bytes(data)) is None


def test_own_descriptor_is_read_without_yaml() -> None:
    """A datanode's id is a UUID, or a word in tests. Neither needs YAML."""
    for name in (BUILT_LIKE_OURS, "bench", "dn-1"):
        descriptor = Descriptor(
            container_id=ContainerId(7),
            state=ReplicaState.QUASI_CLOSED,
            replica_index=3,
            bcsid=Bcsid(12),
            origin_datanode_id=name,
            created_at_ms=1_700_000_000_000,
        )
        assert own_fields(encode_descriptor(descriptor)) is not None
