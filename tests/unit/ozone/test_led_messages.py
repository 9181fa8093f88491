"""Messages between a datanode and Ozone's manager, against what Ozone's own classes say of them."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from ozone.scm_link.messages import (
    REQUEST,
    RESPONSE,
    DatanodeRequestType,
    NodeOperationalState,
    ScmCommandType,
    State,
)
from tests.support.ozone.declaration import NUMBER, SIGNED, TEXT, message_classes
from tests.support.ozone.standin_scm import POOL

PREFIX = "hadoop.hdds."
NUMBERS = {"uint32", "uint64"}
SIGNED_NUMBERS = {"int32", "int64", "enum"}
KINDS = {"string": {"string"}, "bytes": {"string", "bytes"}, "uint64": NUMBERS, "bool": {"bool"},
         "int64": SIGNED_NUMBERS, "message": {"message"}}  # fmt: skip
TYPES = {3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 11: "message",
         12: "bytes", 13: "uint32", 14: "enum"}  # fmt: skip


def differences(ours: Descriptor, theirs: Descriptor, seen: set[str]) -> Iterator[str]:
    """Yield where a message of ours, or one in it, is not Ozone's."""
    if ours.name in seen:
        return
    seen.add(ours.name)
    for field in ours.fields:
        where = f"{ours.name}.{field.name} = {field.number} of {theirs.full_name}"
        real = theirs.fields_by_number.get(field.number)
        if real is None:
            yield f"{where} is not there"
        elif field.is_repeated != real.is_repeated:
            yield f"{where} is {real.name}, and repeated otherwise"
        elif TYPES[real.type] not in KINDS[TYPES[field.type]]:
            yield f"{where} is {real.name}, of another type"
        elif field.message_type is not None:
            yield from differences(field.message_type, real.message_type, seen)


@pytest.mark.parametrize(
    ("message", "theirs"), [(REQUEST, "SCMDatanodeRequest"), (RESPONSE, "SCMDatanodeResponse")]
)
def test_every_field_is_ozones(message: Any, theirs: str) -> None:
    """
    By number, type and whether it is repeated; and no message is left out of the comparison.
    """
    seen: set[str] = set()
    real = POOL.FindMessageTypeByName(PREFIX + theirs)

    assert [] == list(differences(message.DESCRIPTOR, real, seen))
    assert seen == set(message.DESCRIPTOR.file.message_types_by_name)


def test_a_wrong_number_is_seen() -> None:
    """
    The comparison can fail: on a number, a type, and what is repeated.
    """
    fields = {"kind": (99, SIGNED, False), "success": (3, TEXT, False), "status": (5, NUMBER, True)}
    wrong = message_classes("tests.wrong", {"Response": fields})["Response"]
    real = POOL.FindMessageTypeByName(PREFIX + "SCMDatanodeResponse")

    assert 3 == len(list(differences(wrong.DESCRIPTOR, real, set())))


LEFT_OUT = {"unknownScmCommand": "no command", "INVALID": "no datanode reports it any more"}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (DatanodeRequestType, "Type"),
        (ScmCommandType, "SCMCommandProto.Type"),
        (State, "ContainerReplicaProto.State"),
        (NodeOperationalState, "NodeOperationalState"),
    ],
)
def test_every_word_has_ozones_number(ours: type[IntEnum], theirs: str) -> None:
    """
    None is missing that Ozone sends, and states have its names.
    """
    real = POOL.FindEnumTypeByName(PREFIX + theirs).values_by_name
    numbers = {name: value.number for name, value in real.items() if name not in LEFT_OUT}

    assert {one.value for one in ours} == set(numbers.values())
    shared = {one.name: one.value for one in ours if one.name in numbers}
    assert shared == {name: numbers[name] for name in shared}
    assert len(shared) == len(ours) or theirs.endswith("Type")
