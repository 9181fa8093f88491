"""A fake SCM that receives heartbeats, and fake sources of the replicas that they report."""

from collections.abc import Callable, Iterable, Sequence

from agent.host.datanode_identity import DatanodeIdentity
from agent.host.heartbeat import RegistrationInfo
from agent.store.volumes.op_state_file import NodeState
from merkle.replica import ContainerId
from suture.errors import Code, VolumeFailed
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

CLUSTER = "CID-1"


IDENTITY = RegistrationInfo(DatanodeIdentity("dn1", CLUSTER, "1", 42), "127.0.0.1:1", "/rack")


class Scm:
    """An SCM that records requests, and fails on request."""

    def __init__(self) -> None:
        self.registered: list[scm_pb2.RegisterRequest] = []
        self.heard: list[scm_pb2.HeartbeatRequest] = []
        self.errors: list[Exception] = []
        self.answers: list[scm_pb2.HeartbeatResponse] = []
        self.during: Callable[[], None] = lambda: None

    def register(self, request: scm_pb2.RegisterRequest) -> scm_pb2.RegisterResponse:
        self.registered.append(request)
        return scm_pb2.RegisterResponse(
            cluster_id=CLUSTER,
            heartbeat_interval_ms=1000,
        )

    def heartbeat(self, request: scm_pb2.HeartbeatRequest) -> scm_pb2.HeartbeatResponse:
        if self.errors:
            raise self.errors.pop(0)
        self.during()
        self.heard.append(request)
        return self.answers.pop(0) if self.answers else scm_pb2.HeartbeatResponse(term=3)


class Replicas:
    """The replicas to report: container ids with a bcsid each."""

    def __init__(self, count: int) -> None:
        self.bcsids = dict.fromkeys(range(1, count + 1), 1)
        self.state = NodeState()
        self.waiting: set[int] = set()  # replicas that wait for the rebuild of a lost index

    @property
    def is_rebuilding(self) -> bool:
        return bool(self.waiting)

    def is_waiting(self, container_id: ContainerId) -> bool:
        return container_id in self.waiting

    def replica_ids(self) -> Sequence[ContainerId]:
        return [ContainerId(number) for number in sorted(self.bcsids.keys() - self.waiting)]

    def report(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        if container_id not in self.bcsids:
            return container_pb2.ReplicaReport(
                container_id=container_id, state=container_pb2.DELETED
            )
        return container_pb2.ReplicaReport(
            container_id=container_id,
            state=container_pb2.CLOSED,
            bcsid=self.bcsids[container_id],
        )

    def volumes(self) -> Iterable[datanode_pb2.VolumeStatus]:
        return [datanode_pb2.VolumeStatus(volume_id="vol1")]

    def queues(self) -> Iterable[scm_pb2.QueueCount]:
        return []

    def node_state(self) -> NodeState:
        return self.state


class Failing(Replicas):
    """Replicas of which one cannot be read on the first reads."""

    def __init__(self, count: int, *, broken: int) -> None:
        super().__init__(count)
        self.broken = broken
        self.failures_left = 1

    def report(self, container_id: ContainerId) -> container_pb2.ReplicaReport:
        if container_id == self.broken and self.failures_left:
            self.failures_left -= 1
            raise VolumeFailed(Code.IO_EXCEPTION, "the index cannot be read")
        return super().report(container_id)


class Finishing(Replicas):
    """Replicas of a datanode whose only task ends while a heartbeat is being built."""

    def __init__(self) -> None:
        super().__init__(1)
        self.is_running = False
        self.answer: Callable[[], None] = lambda: None

    def volumes(self) -> Iterable[datanode_pb2.VolumeStatus]:
        if self.is_running:
            self.answer()
            self.is_running = False
        return super().volumes()

    def queues(self) -> Iterable[scm_pb2.QueueCount]:
        return [scm_pb2.QueueCount(type="close", count=1)] if self.is_running else []
