"""A fake datanode for tests of the SCM: a real gRPC client with replicas in a dictionary."""

import itertools
from dataclasses import dataclass, field
from typing import Any

import grpc

from merkle.replica import LAYOUT_VERSION
from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

GIB = 1024**3
HOSTS = itertools.count(1)


def unreachable() -> str:
    """Return an address at which no server listens. Each call returns a different address."""
    number = next(HOSTS)
    return f"127.{number // 65_025 % 255}.{number // 255 % 255}.{number % 255}:1"


def report(
    container_id: int,
    state: container_pb2.ReplicaState = container_pb2.OPEN,
    *,
    bcsid: int = 0,
    root: int | None = None,
    block_count: int = 1,
) -> container_pb2.ReplicaReport:
    """Return the report of a replica. If `root` is None, the report has no tree."""
    tree = None
    if root is not None:
        tree = container_pb2.TreeSummary(
            algorithm=container_pb2.TREE_XXH3_64, root=root, generation=1, block_count=block_count
        )
    return container_pb2.ReplicaReport(
        container_id=container_id,
        state=state,
        bcsid=bcsid,
        block_count=block_count,
        used_bytes=block_count * 1_000,
        tree=tree,
        volume_id="volume-1",
    )


@dataclass
class FakeDatanode:
    """Registers, sends heartbeats, keeps its commands, and obeys close commands if requested."""

    stub: Stub
    datanode_id: str
    rack: str = "/rack-1"
    address: str = field(default_factory=unreachable)
    boot_id: int = 1
    layout_version: int = LAYOUT_VERSION
    capacity_bytes: int = 100 * GIB
    available_bytes: int = 90 * GIB
    volume_facts: dict[str, Any] = field(default_factory=dict)
    commands: list[scm_pb2.Command] = field(default_factory=list)
    replicas: dict[int, container_pb2.ReplicaReport] = field(default_factory=dict)

    @classmethod
    def dial(cls, address: str, datanode_id: str, **more: object) -> "FakeDatanode":
        """Open a separate channel to the SCM at `address`."""
        stub = Stub(grpc.insecure_channel(address), SCM)
        return cls(stub, datanode_id, **more)  # type: ignore[arg-type]

    def volumes(self) -> list[datanode_pb2.VolumeStatus]:
        """Return the status of the datanode's only volume."""
        return [
            datanode_pb2.VolumeStatus(
                volume_id="volume-1",
                path="/data",
                capacity_bytes=self.capacity_bytes,
                available_bytes=self.available_bytes,
                **self.volume_facts,
            )
        ]

    def register(self, *, cluster_id: str = "") -> scm_pb2.RegisterResponse:
        """Join the cluster."""
        response: scm_pb2.RegisterResponse = self.stub.Register(
            scm_pb2.RegisterRequest(
                datanode_id=self.datanode_id,
                address=self.address,
                rack=self.rack,
                version="0.1.0",
                cluster_id=cluster_id,
                volumes=self.volumes(),
                boot_id=self.boot_id,
                layout_version=self.layout_version,
            )
        )
        return response

    def heartbeat(
        self,
        *reports: scm_pb2.ContainerReport,
        statuses: tuple[scm_pb2.CommandStatus, ...] = (),
        queues: dict[str, int] | None = None,
    ) -> scm_pb2.HeartbeatResponse:
        """Send one heartbeat, and append the commands in the answer to `commands`; return the
        answer."""
        response: scm_pb2.HeartbeatResponse = self.stub.Heartbeat(
            scm_pb2.HeartbeatRequest(
                datanode_id=self.datanode_id,
                boot_id=self.boot_id,
                volumes=self.volumes(),
                reports=reports,
                command_statuses=statuses,
                queues=[
                    scm_pb2.QueueCount(type=kind, count=count)
                    for kind, count in (queues or {}).items()
                ],
            )
        )
        self.commands.extend(response.commands)
        return response

    def report_full(self, *replicas: container_pb2.ReplicaReport) -> scm_pb2.HeartbeatResponse:
        """Report these replicas in a full report."""
        self.replicas = {replica.container_id: replica for replica in replicas}
        return self.heartbeat(
            scm_pb2.ContainerReport(full=True, report_id=1, last=True, replicas=replicas)
        )

    def report_some(self, *replicas: container_pb2.ReplicaReport) -> scm_pb2.HeartbeatResponse:
        """Report these replicas in an incremental report."""
        self.replicas |= {replica.container_id: replica for replica in replicas}
        return self.heartbeat(scm_pb2.ContainerReport(replicas=replicas))

    def obey_closes(self, *, root: int) -> scm_pb2.HeartbeatResponse:
        """Carry out the close commands, answer them, and report the result."""
        statuses, changed = [], []
        for command in self.commands:
            if command.WhichOneof("command") != "close":
                continue
            statuses.append(_status(command))
            replica = self.replicas.get(command.close.container_id)
            if replica is None:
                continue
            complete = command.close.force or replica.bcsid >= command.close.bcsid
            state = container_pb2.CLOSED if complete else container_pb2.QUASI_CLOSED
            closed = report(replica.container_id, state, bcsid=replica.bcsid, root=root)
            closed.replica_index = replica.replica_index
            self.replicas[replica.container_id] = closed
            changed.append(closed)
        self.commands = [c for c in self.commands if c.WhichOneof("command") != "close"]
        return self.heartbeat(scm_pb2.ContainerReport(replicas=changed), statuses=tuple(statuses))


def _status(command: scm_pb2.Command) -> scm_pb2.CommandStatus:
    return scm_pb2.CommandStatus(
        command_id=command.command_id,
        state=scm_pb2.CommandStatus.EXECUTED,
        type=command.WhichOneof("command"),
        container_id=command.close.container_id,
    )
