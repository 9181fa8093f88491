"""The table of JSON documents names every command, every object and every field of a message.

That commands print what the table says is shown by tests/integration/cli/test_whole_answers.py.
"""

import re
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.command_tree import LEAVES, has_parameter
from tools.json_documents import SIMPLE, alternatives, documents

NUMBERS = {
    FieldDescriptor.CPPTYPE_STRING: "string",
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
    FieldDescriptor.CPPTYPE_DOUBLE: "number",
}
ROOT_OF_A_TIME = "HistoryEntry.root"  # shown in hex, as in tables
MESSAGES: dict[str, Descriptor] = {
    name: found
    for module in (scm_pb2, datanode_pb2, container_pb2)
    for name, found in module.DESCRIPTOR.message_types_by_name.items()
}
NAME = re.compile(r"[A-Za-z]+")


def names_in(type_: str) -> set[str]:
    """Return the objects that a type names."""
    return {name for one in alternatives(type_) for name in NAME.findall(one)} - {*SIMPLE, "or"}


def type_of(field: Any) -> str:
    """Return the type of a field of a message, as the table writes it."""
    if field.message_type is None:
        name = "string" if field.enum_type else NUMBERS.get(field.cpp_type, "integer")
    elif field.message_type.GetOptions().map_entry:
        return f"{{{type_of(field.message_type.fields_by_name['value'])}}}"
    else:
        name = field.message_type.name
    return f"[{name}]" if field.is_repeated else name


def test_every_command_with_json_has_a_document() -> None:
    """A command without --json has none."""
    wanted = {" ".join(words) for words in LEAVES if has_parameter(words, "as_json")}

    assert wanted == set(documents().commands)


def test_every_object_is_used_and_every_used_object_is_described() -> None:
    """Only errors and the line of the servers belong to no command."""
    known = documents()
    types = [*known.commands.values(), *(k.type for keys in known.objects.values() for k in keys)]
    used = {name for type_ in types for name in names_in(type_)}

    assert used | {"Error", "Listening"} == set(known.objects)


def test_every_key_has_a_meaning() -> None:
    """A key that is described by the object of its type needs no other words."""
    assert [] == [
        f"{name}.{key.name}"
        for name, keys in documents().objects.items()
        for key in keys
        if not key.meaning and not names_in(key.type)
    ]


@pytest.mark.parametrize("name", sorted(set(documents().objects) & set(MESSAGES)))
def test_object_of_a_message_has_its_fields(name: str) -> None:
    """The keys of a message's document are its fields, with their types."""
    fields = {field.name: type_of(field) for field in MESSAGES[name].fields}
    keys = {key.name: key.type for key in documents().objects[name]}
    if name == ROOT_OF_A_TIME.partition(".")[0]:
        fields["root"] = "string or null"

    assert fields == keys
