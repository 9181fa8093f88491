"""Which datanode a word of the command line names."""

import pytest

from suture.errors import RefusedError
from suture.terminal.selection import one_node
from suture.wire.v1 import scm_pb2

NODES = [
    scm_pb2.NodeInfo(datanode_id="dn1", address="first.example.org:9859"),
    scm_pb2.NodeInfo(datanode_id="dn10", address="tenth.example.org:9859"),
]


@pytest.mark.parametrize(
    ("given", "datanode_id"),
    [("dn1", "dn1"), ("dn10", "dn10"), ("tenth.example.org:9859", "dn10")],
)
def test_a_whole_id_names_one_though_others_begin_so(given: str, datanode_id: str) -> None:
    """
    An id of which another is the beginning is no prefix that is too short.
    """
    assert one_node(NODES, given).datanode_id == datanode_id


@pytest.mark.parametrize("given", ["dn", "", "dn2", "first.example.org"])
def test_ambiguous_or_unknown_datanode_is_refused(given: str) -> None:
    """No command goes to a datanode that the operator may not have meant."""
    with pytest.raises(RefusedError):
        one_node(NODES, given)


def test_address_of_two_datanodes_is_refused_with_both_and_their_states() -> None:
    """A host that was installed again has a new id, and its old one is known until removed."""
    address = "first.example.org:9859"
    nodes = [
        scm_pb2.NodeInfo(datanode_id="old", address=address, health="DEAD", op_state="IN_SERVICE"),
        scm_pb2.NodeInfo(
            datanode_id="new", address=address, health="HEALTHY", op_state="DECOMMISSIONING"
        ),
    ]

    with pytest.raises(RefusedError) as refusal:
        one_node(nodes, address)

    assert str(refusal.value) == (
        "2 datanodes have the address first.example.org:9859: "
        "old (DEAD, IN_SERVICE), new (HEALTHY, DECOMMISSIONING)"
    )


def test_beginning_of_many_ids_names_the_first_five() -> None:
    """An error fits on a screen also in a cluster of thousands."""
    nodes = [scm_pb2.NodeInfo(datanode_id=f"dn{i}", health="HEALTHY") for i in range(7)]

    with pytest.raises(RefusedError, match="7 datanodes have an id that begins with dn") as refusal:
        one_node(nodes, "dn")

    assert ("dn4" in str(refusal.value), "dn5" in str(refusal.value)) == (True, False)
    assert str(refusal.value).endswith(" and 2 more")
