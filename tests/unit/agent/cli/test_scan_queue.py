"""Scans that `suture scan --no-wait` asks for wait for a place in the queue."""

from collections.abc import Iterator
from typing import Any

import pytest

from agent.cli.inspect.replica_commands import ScanOptions, scan_one
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

REPLICA = scm_pb2.ContainerInfoReplica(datanode=container_pb2.DatanodeEndpoint(datanode_id="dn1"))
WISH = ScanOptions(container_id=1, wait=False, full_speed=False)
BUSY = UnavailableError(Code.BUSY, "10 scans are waiting")
AWAY = UnavailableError(Code.UNAVAILABLE, "connection refused")


class Answering:
    """A client whose only datanode fails as told, then queues the scan."""

    def __init__(self, failures: list[SutureError]) -> None:
        self._failures = failures

    def peer(self, _datanode: object) -> Any:
        """Return the datanode."""
        return self

    def scan(self, _container_id: int, *, queue: bool) -> Iterator[datanode_pb2.ScanProgress]:
        """Queue a scan."""
        assert queue
        if self._failures:
            raise self._failures.pop(0)
        yield datanode_pb2.ScanProgress(waiting=True)


@pytest.mark.parametrize("failures", [[BUSY], [BUSY, BUSY]])
def test_queued_scan_waits_while_the_queue_is_full(
    failures: list[SutureError], capsys: pytest.CaptureFixture[str]
) -> None:
    """
    It says once on stderr what it waits for.
    """
    said = str(failures[0])
    client: Any = Answering(failures)

    assert scan_one(client, REPLICA, WISH).waiting
    assert 1 == " ".join(capsys.readouterr().err.split()).count(said.split(";")[0])


@pytest.mark.parametrize(
    "failure", [RefusedError(Code.CONTAINER_NOT_FOUND, "no container 1"), AWAY]
)
def test_other_failures_of_a_queued_scan_are_final(failure: SutureError) -> None:
    """
    A datanode that is away is reported, so that the scans of other replicas are queued.
    """
    client: Any = Answering([failure])

    with pytest.raises(SutureError) as raised:
        scan_one(client, REPLICA, WISH)
    assert failure is raised.value
