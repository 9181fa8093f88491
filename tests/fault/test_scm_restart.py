"""A control plane that stops and starts again: datanodes find it, and safe mode ends with them."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.host.datanode_identity import DatanodeIdentity
from agent.host.heartbeat import HeartbeatWorker, RegistrationInfo
from agent.host.outbox import Outbox
from agent.store.volumes.op_state_file import NodeState
from merkle.replica import ContainerId
from suture.errors import UnavailableError
from suture.runtime.clock import SystemClock
from suture.runtime.loop import WorkerLoop
from suture.wire.clients.scm import ScmClient
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.control.fake_datanode import report
from tests.support.control.scm_process import ScmProcess
from tools.demo.cluster import free_port

pytestmark = [pytest.mark.fault, pytest.mark.slow]

NODES = ("dn1", "dn2", "dn3")
INTERVAL_S = 1.0
WAIT_S = 60.0
DEFAULTS = {"heartbeat_interval_ms": 1_000, "stale_after_ms": 15_000, "dead_after_ms": 60_000}
HEARTBEATS_MAX = 3  # of each datanode, answered after the restart and until safe mode ends
FAILURES_MIN = 5  # of each datanode's calls while nobody listens: its pauses have grown by then


class Holder:
    """What a datanode with one replica has to say."""

    is_rebuilding = False

    def is_waiting(self, _: ContainerId) -> bool:
        return False

    def replica_ids(self) -> Sequence[ContainerId]:
        return [ContainerId(1)]

    def report(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        return report(container_id, container_pb2.CLOSED, bcsid=1, root=7)

    def volumes(self) -> Iterable[datanode_pb2.VolumeStatus]:
        return [datanode_pb2.VolumeStatus(volume_id="v", path="/v", capacity_bytes=10**9)]

    def queues(self) -> Iterable[scm_pb2.QueueCount]:
        return []

    def node_state(self) -> NodeState:
        return NodeState()


class Counted(ScmClient):
    """A client that counts heartbeats that were answered, and calls it could not deliver."""

    answers = 0
    failures = 0
    called = threading.Event()  # by any of them, with or without success

    def register(self, request: scm_pb2.RegisterRequest) -> scm_pb2.RegisterResponse:
        with self._counted():
            return super().register(request)

    def heartbeat(self, request: scm_pb2.HeartbeatRequest) -> scm_pb2.HeartbeatResponse:
        with self._counted():
            answer = super().heartbeat(request)
            self.answers += 1
            return answer

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except UnavailableError:
            self.failures += 1
            raise
        finally:
            self.called.set()


def beat_of(name: str, scm: ScmClient, cluster_id: str) -> HeartbeatWorker:
    """Return the heartbeat of a datanode, as an agent has it."""
    identity = RegistrationInfo(
        DatanodeIdentity(name, cluster_id, "0.1.0", 1), f"{name}:1", "/rack"
    )
    return HeartbeatWorker(
        scm, Holder(), identity, lambda _commands, _term: None, SystemClock(), outbox=Outbox()
    )


def wait_until(condition: Callable[[], bool], states: Callable[[], object] = str) -> None:
    """Ask after each call of a datanode, up to WAIT_S; then show `states`."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {WAIT_S} s: {states()}"
        Counted.called.wait(INTERVAL_S)
        Counted.called.clear()


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "terminated"])
def test_safe_mode_ends_within_three_heartbeats_of_a_restart(
    tmp_path: Path, is_killed: bool
) -> None:
    """Every datanode registers again and reports all its replicas, without waiting for the
    hourly report. How soon they call is tested in `test_heartbeat` and `test_reconnecting`.
    """
    address = f"127.0.0.1:{free_port()}"
    scm = ScmProcess.start(tmp_path, listen=address, **DEFAULTS)
    clients = [Counted(address) for _ in NODES]
    cluster_id = str(scm.listening["cluster_id"])
    loops = [WorkerLoop(beat_of(*pair, cluster_id)) for pair in zip(NODES, clients, strict=True)]
    operator = ScmClient(address)

    def is_safe_mode_on() -> bool:
        try:
            return bool(operator.safe_mode(scm_pb2.SafeModeRequest()).on)
        except UnavailableError:  # not connected again
            return True

    def counts() -> list[tuple[int, int]]:
        return [(client.answers, client.failures) for client in clients]

    def online() -> int:
        nodes = operator.list_nodes(scm_pb2.ListNodesRequest()).nodes
        return sum(node.health == "HEALTHY" for node in nodes)

    try:
        for loop in loops:
            loop.start()
        wait_until(lambda: online() == len(NODES), counts)
        scm.kill() if is_killed else scm.terminate()
        wait_until(lambda: min(client.failures for client in clients) >= FAILURES_MIN, counts)
        scm = ScmProcess.start(tmp_path, listen=address, **DEFAULTS)
        before = [client.answers for client in clients]
        wait_until(lambda: not is_safe_mode_on(), counts)
        answered = [client.answers - first for client, first in zip(clients, before, strict=True)]
        expected = operator.safe_mode(scm_pb2.SafeModeRequest()).expected_count
    finally:
        for loop in loops:
            loop.request_stop()
        scm.kill()
        for ended in [*clients, operator]:
            ended.close()

    assert len(NODES) == expected
    assert max(answered) <= HEARTBEATS_MAX
