"""suture log, and datanodes that cannot tell."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from agent.cli.inspect.change_log import asked_of
from agent.client.client import Client
from agent.errors import Refused
from agent.rpc.v1 import datanode_pb2_grpc


@pytest.fixture
def old_agent() -> Iterator[str]:
    """Serve a datanode that knows none of the calls, as an old one does not know this one."""
    with ThreadPoolExecutor(2) as executor:
        server = grpc.server(executor)
        servicer = datanode_pb2_grpc.DatanodeServicer()  # type: ignore[no-untyped-call]
        datanode_pb2_grpc.add_DatanodeServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(0).wait()


def test_an_agent_of_an_earlier_version_is_told_as_such(old_agent: str) -> None:
    """Not as a datanode that does not answer: it does, and an upgrade mends it."""
    with Client("127.0.0.1:1") as client, pytest.raises(Refused, match="keeps no list of changes"):
        asked_of(client.peer(old_agent), 0)
