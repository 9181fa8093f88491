"""A container on datanodes that carry out the control plane's commands; no sockets, no disks."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from scm.cluster.replica_map import NodeReplicaReport
from scm.state.entities import (
    CommandKind,
    CommandOutcome,
    Container,
    Key,
    KeyBlock,
    OutcomeState,
    Replica,
)
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, outcome

OPTIONS: Final = ScmOptions(check_interval_ms=10_000, repair_grace_ms=0, heal=False)


@dataclass
class Cluster:
    """Container 1 on datanodes that carry out deletes and copies."""

    world: ScmWorld
    nodes: list[str]
    held: dict[str, Replica] = field(default_factory=dict)
    ended: list[CommandOutcome] = field(default_factory=list)
    witnesses: dict[str, set[str]] = field(default_factory=dict)
    """The witness datanodes that the sent delete commands name, by the datanode that deletes."""

    def pass_time(self, seconds: int) -> None:
        """Let time pass second by second. All nodes send heartbeats and carry out their
        commands."""
        for _ in range(seconds):
            self.world.clock.advance_s(1)
            for node in self.nodes:
                self._obey(node)
            self.world.control.tick()
        count = self.world.state.counters["next_command_id"]
        found = (self.world.state.outcome(number) for number in range(1, count))
        self.ended = [one for one in found if one is not None]

    def refused(self) -> list[str]:
        """Return the reasons why delete commands were not sent."""
        of_deletes = [one for one in self.ended if one.kind == CommandKind.DELETE]
        return [one.message for one in of_deletes if one.state == OutcomeState.SKIPPED]

    def _obey(self, node: str) -> None:
        for command, peers in self.world.call(node).commands:
            concerned = {node}
            if command.kind is CommandKind.DELETE:
                self.witnesses[node] = {peer.datanode_id for peer in peers}
                del self.held[node]
            elif command.kind is CommandKind.REPLICATE:
                copy = replace(self.held[node], datanode_id=command.target_id)
                self.held[command.target_id] = copy
                concerned.add(command.target_id)
            for one in concerned:
                self.report(one)
            self.world.beat(node, outcomes=(outcome(command),))

    def report(self, node: str) -> None:
        """Let a node report all its replicas."""
        mine = (self.held[node],) if node in self.held else ()
        self.world.call(node, NodeReplicaReport(True, 1, 0, is_last=True, replicas=mine))


@contextmanager
def cluster(
    path: Path,
    box: Container,
    *held: Replica,
    node_count: int,
    options: ScmOptions = OPTIONS,
    racks: tuple[str, ...] = ("/r1",),
    acknowledged_bcsid: int = 0,
) -> Iterator[Cluster]:
    """Return a cluster whose nodes have these replicas and have reported them."""
    nodes = [f"dn{number}" for number in range(1, node_count + 1)]
    with ScmWorld(path, options).running() as world:
        world.join(*nodes, racks=racks)
        with world.state.change() as change:
            change.put(world.state.containers, box)
            change.next_id("next_container_id")
            if acknowledged_bcsid:
                blocks = (KeyBlock(1, 1, acknowledged_bcsid, 10),)
                change.put(world.state.keys, Key("k", 10, 1, blocks))
        made = Cluster(world, nodes, {one.datanode_id: one for one in held})
        for node in nodes:
            made.report(node)
        yield made
