"""A datanode refuses calls that are meant for another one, read off real connections."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.cli.inspect.status import fetch_all_statuses
from merkle.replica import BlockId, ContainerId
from suture.errors import Code, RefusedError
from suture.wire.clients.peer import Peer
from suture.wire.security.tls import LOOPBACK_ONLY
from suture.wire.v1 import scm_pb2
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import CONTAINER

OTHER = ContainerId(2)

CALLS: dict[str, Callable[[Peer], object]] = {
    "unary": lambda peer: peer.status(),
    "change": lambda peer: peer.create_shard(OTHER, 1),
    "trees": lambda peer: peer.summary(CONTAINER),
    "chunk": lambda peer: peer.read_chunk(CONTAINER, BlockId(1), 0),
    "scan": lambda peer: list(peer.scan(CONTAINER)),
    "upload": lambda peer: peer.write_blocks(OTHER, 1, []),
}
"""Calls of each shape: one answer, many answers, many requests."""


@pytest.fixture
def datanode(tmp_path: Path) -> Iterator[Datanode]:
    """Datanode dn1 with container 1 closed, serving."""
    made = Datanode("dn1", tmp_path / "dn1")
    made.replica.create()
    made.serve()
    yield made
    made.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_call_for_another_datanode_is_refused(
    datanode: Datanode, call: Callable[[Peer], object]
) -> None:
    """The refusal names both datanodes, and nothing is created."""
    with Peer(datanode.address, datanode_id="dn2") as peer, pytest.raises(RefusedError) as refused:
        call(peer)

    assert Code.WRONG_DATANODE is refused.value.code
    assert "this is datanode dn1, the call is for datanode dn2" in str(refused.value)
    assert [CONTAINER] == list(datanode.replica.store.replica_ids())


@pytest.mark.parametrize("datanode_id", ["dn1", ""], ids=["its own id", "no id"])
def test_call_for_this_datanode_is_answered(datanode: Datanode, datanode_id: str) -> None:
    """A caller that knows only the address, as a person does, may leave the id out."""
    with Peer(datanode.address, datanode_id=datanode_id) as peer:
        status = peer.status()

    assert "dn1" == status.datanode_id


def test_status_takes_no_answer_of_another_datanode_at_the_address(datanode: Datanode) -> None:
    """The row of a reinstalled host's old id would show the volumes of the new one."""
    nodes = [
        scm_pb2.NodeInfo(datanode_id=name, address=datanode.address) for name in ("dn1", "dn2")
    ]

    own, other = fetch_all_statuses(nodes, LOOPBACK_ONLY)

    assert not isinstance(own, str)
    assert "the call is for datanode dn2" in str(other)
