"""Which datanode a word of the command line names."""

import pytest

from agent.cli.terminal.selection import one_node
from agent.errors import Refused
from agent.rpc.v1 import scm_pb2

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
def test_what_names_none_or_several_is_refused(given: str) -> None:
    """
    Nothing is done to a datanode that somebody may not have meant.
    """
    with pytest.raises(Refused):
        one_node(NODES, given)
