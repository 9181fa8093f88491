"""Messages between a datanode and Ozone's manager, against what Ozone's own classes say of them."""

from collections.abc import Iterator, Mapping
from enum import IntEnum

import pytest

from ozone.declaration import BOOL, BYTES, NUMBER, SIGNED, TEXT, Fields
from ozone.leading.messages import DATANODE, SCM, Ask, OpState, Order, State
from tests.support.ozone.standin_scm import POOL

PREFIX = "hadoop.hdds."
OZONE = {
    "Request": "SCMDatanodeRequest",
    "Response": "SCMDatanodeResponse",
}
"""Where ours begin; what they hold is followed from there."""
NUMBERS = {"uint32", "uint64"}
SIGNED_NUMBERS = {"int32", "int64", "enum"}
KINDS = {TEXT: {"string"}, BYTES: {"string", "bytes"}, NUMBER: NUMBERS, BOOL: {"bool"},
         SIGNED: SIGNED_NUMBERS}  # fmt: skip
TYPES = {3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 11: "message",
         12: "bytes", 13: "uint32", 14: "enum"}  # fmt: skip


def differences(
    messages: Mapping[str, Fields], ours: str, theirs: str, seen: set[str]
) -> Iterator[str]:
    """Yield where a message of ours, or one in it, is not Ozone's."""
    if ours in seen:
        return
    seen.add(ours)
    fields = POOL.FindMessageTypeByName(theirs).fields_by_number
    for name, (number, kind, is_repeated) in messages[ours].items():
        where = f"{ours}.{name} = {number} of {theirs}"
        real = fields.get(number)
        if real is None:
            yield f"{where} is not there"
            continue
        if is_repeated != real.is_repeated:
            yield f"{where} is {real.name}, and repeated otherwise"
        if kind in messages:
            if real.message_type is None:
                yield f"{where} is {real.name}, no message"
            else:
                yield from differences(messages, kind, real.message_type.full_name, seen)
        elif TYPES[real.type] not in KINDS[kind]:
            yield f"{where} is {real.name}, of another type"


@pytest.mark.parametrize(("messages", "first"), [(DATANODE, "Request"), (SCM, "Response")])
def test_every_field_is_ozones(messages: dict[str, Fields], first: str) -> None:
    """
    By number, type and whether it is repeated; and no message is left out of the comparison.
    """
    seen: set[str] = set()

    assert [] == list(differences(messages, first, PREFIX + OZONE[first], seen))
    assert seen == set(messages)


def test_a_wrong_number_is_seen() -> None:
    """
    The comparison can fail: on a number, a type, and what is repeated.
    """
    wrong: dict[str, Fields] = {
        "Response": {"kind": (99, SIGNED, False), "success": (3, TEXT, False),
                     "status": (5, SIGNED, True)},
    }  # fmt: skip

    found = list(differences(wrong, "Response", PREFIX + OZONE["Response"], set()))

    assert 3 == len(found)


LEFT_OUT = {"unknownScmCommand": "no command", "INVALID": "no datanode reports it any more"}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Ask, "Type"),
        (Order, "SCMCommandProto.Type"),
        (State, "ContainerReplicaProto.State"),
        (OpState, "NodeOperationalState"),
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
