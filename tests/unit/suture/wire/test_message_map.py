"""Tables that convert values to messages."""

from dataclasses import dataclass

import pytest

from suture.wire.mapping.message_map import Field, MessageMap, each
from suture.wire.v1 import container_pb2, scm_pb2


@dataclass(frozen=True, slots=True)
class Node:
    """The attribute of an entry whose own attributes are fields."""

    datanode_id: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A value with a name of its own for each thing."""

    node: Node
    containers: tuple[int, ...]

    @property
    def url(self) -> str:
        """Return a property that is a field."""
        return f"{self.node.datanode_id}:1"


ENDPOINT = MessageMap(container_pb2.DatanodeEndpoint, Entry, within=["node"], address="url")


def test_fields_come_from_attributes_paths_and_properties() -> None:
    """A field without an entry has the attribute of its name, also one within another."""
    message = ENDPOINT.message(Entry(Node("dn1"), ()))

    assert container_pb2.DatanodeEndpoint(datanode_id="dn1", address="dn1:1") == message


def test_fields_are_encoded_and_omitted_fields_are_given() -> None:
    """The caller decides about a field that the table omits."""
    table = MessageMap(
        scm_pb2.DeleteKeysResponse, Node, deletions=Field("datanode_id", lambda _: [])
    )
    key = MessageMap(
        scm_pb2.ContainerKey,
        Entry,
        omits=["size"],
        key="node.datanode_id",
        container_ids=Field("containers", sorted),
    )

    assert scm_pb2.DeleteKeysResponse() == table.message(Node("dn1"))
    expected = scm_pb2.ContainerKey(key="dn1", size=3, container_ids=[1, 2])
    assert expected == key.message(Entry(Node("dn1"), (2, 1)), size=3)


def test_repeated_field_has_a_message_of_each_value() -> None:
    """The messages have the order of the values."""

    @dataclass(frozen=True)
    class Group:
        members: tuple[Entry, ...]

    table = MessageMap(
        scm_pb2.ContainerReplicas,
        Group,
        omits=["container_id", "scheme", "equal_count"],
        replicas=each(ENDPOINT, "members"),
    )
    members = tuple(Entry(Node(name), ()) for name in ("b", "a"))

    message = table.message(Group(members))

    assert ["b", "a"] == [replica.datanode_id for replica in message.replicas]


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"address": "uri"}, "address"),
        ({"address": "url", "adress": "url"}, "adress"),
        ({}, "address"),
    ],
)
def test_table_with_an_unknown_name_is_not_made(wrong: dict[str, str], name: str) -> None:
    """A misspelt or forgotten field is found when the module is imported."""
    with pytest.raises(ValueError, match=name):
        MessageMap(container_pb2.DatanodeEndpoint, Entry, within=["node"], **wrong)
