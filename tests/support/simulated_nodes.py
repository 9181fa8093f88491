"""A cluster of light datanodes: real gRPC to a real control plane, replicas in dicts, no disks."""

from dataclasses import dataclass, field

import grpc

from agent.rpc.v1 import container_pb2, scm_pb2, scm_pb2_grpc
from tests.support.fake_datanode import FakeDatanode, report

ROOT = 7


@dataclass
class SimulatedCluster:
    """Datanodes that do what they are told; `round` lets each living one call once."""

    address: str
    count: int
    rack_count: int = 4
    nodes: dict[str, FakeDatanode] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    held_most: dict[str, int] = field(default_factory=dict)  # commands of a kind at one node
    copied: list[int] = field(default_factory=list)  # containers, in the order of orders

    def start(self) -> None:
        """Register all, on racks in turn."""
        channel = grpc.insecure_channel(self.address)
        for i in range(self.count):
            node = FakeDatanode(
                scm_pb2_grpc.ScmStub(channel), f"dn{i:03d}", rack=f"/rack{i % self.rack_count}"
            )
            self.nodes[node.datanode_id] = node
            node.register()
            node.report_full()

    def restart_on(self, address: str) -> None:
        """Register the living with a control plane that was started anew; all report all."""
        channel = grpc.insecure_channel(address)
        for node in self.living():
            node.stub = scm_pb2_grpc.ScmStub(channel)
            node.commands.clear()
            node.register()
            node.report_full(*node.replicas.values())

    def living(self) -> list[FakeDatanode]:
        """Return the datanodes that are not dead."""
        return [node for name, node in self.nodes.items() if name not in self.dead]

    def round(self) -> None:
        """Let every living datanode execute what it has, and call."""
        for node in self.living():
            statuses, reports = self._execute(node)
            node.heartbeat(*reports, statuses=tuple(statuses))
            kinds = [command.WhichOneof("command") for command in node.commands]
            for kind in set(kinds):
                self.held_most[kind] = max(self.held_most.get(kind, 0), kinds.count(kind))

    def holders(self, container_id: int) -> list[str]:
        """Return the living datanodes with a closed replica."""
        return [
            node.datanode_id
            for node in self.living()
            if container_id in node.replicas
            and node.replicas[container_id].state == container_pb2.CLOSED
        ]

    def _execute(
        self, node: FakeDatanode
    ) -> tuple[list[scm_pb2.CommandStatus], list[scm_pb2.ContainerReport]]:
        statuses, changed = [], []
        for command in node.commands:
            kind = command.WhichOneof("command")
            inner = getattr(command, kind)
            container_id = getattr(inner, "container_id", 0)
            is_done = True
            if kind == "close" and container_id in node.replicas:
                old = node.replicas[container_id]
                changed.append(
                    report(container_id, container_pb2.CLOSED, bcsid=old.bcsid, root=ROOT)
                )
                node.replicas[container_id] = changed[-1]
            elif kind == "replicate":
                is_done = self._copy(node, inner)
            elif kind == "delete":
                node.replicas.pop(container_id, None)
                changed.append(report(container_id, container_pb2.DELETED))
            state = scm_pb2.CommandStatus.EXECUTED if is_done else scm_pb2.CommandStatus.FAILED
            statuses.append(
                scm_pb2.CommandStatus(
                    command_id=command.command_id,
                    state=state,
                    type=kind,
                    container_id=container_id,
                    code="" if is_done else "UNAVAILABLE",
                )
            )
        node.commands.clear()
        return statuses, [scm_pb2.ContainerReport(replicas=changed)] if changed else []

    def _copy(self, node: FakeDatanode, command: scm_pb2.ReplicateCommand) -> bool:
        """Put the replica on the target, which reports it at once."""
        target = self.nodes[command.target.datanode_id]
        self.copied.append(command.container_id)
        if target.datanode_id in self.dead or command.container_id not in node.replicas:
            return False
        assert command.container_id not in target.replicas
        replica = node.replicas[command.container_id]
        target.report_some(replica)
        return True
