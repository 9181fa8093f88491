"""A control plane without a server: real state on disk, a clock that tests move, no sockets."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from merkle.checksum import Algorithm
from merkle.replica import LAYOUT_VERSION, ReplicaState
from merkle.tree_summary import TreeSummary
from scm.api.call_values import AllocatedBlockInfo, Heartbeat, HeartbeatAnswer
from scm.api.calls.control import ControlPlane
from scm.api.server import build_server
from scm.api.service import ScmService
from scm.cluster.nodes import Registration
from scm.cluster.replica_map import NodeReplicaReport
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.entities import (
    CommandKind,
    CommandOutcome,
    Container,
    ContainerState,
    Key,
    KeyBlock,
    OpState,
    OutcomeState,
    PendingCommand,
    Replica,
    ReportedVolume,
)
from scm.state.options import ScmOptions
from suture.wire.server.authorization import Audit
from tests.support.clock import FakeClock

GIB = 1024**3
MAP_BYTES = 64 * 1024**2


def summary(root: int, *, tombstones: int = 0) -> TreeSummary:
    """Return the summary of a tree. Trees with the same root have the same data."""
    return TreeSummary(Algorithm.XXH3_64, root, 1, 1, 1 if tombstones else 0, tombstones)


def replica(
    node: str,
    state: ReplicaState = ReplicaState.CLOSED,
    *,
    container_id: int = 1,
    bcsid: int = 5,
    root: int | None = 7,
    load_error: str = "",
    replica_index: int = 0,
    finding_count: int = 0,
) -> Replica:
    """Return a replica as a datanode reported it. If `root` is None, it has no tree."""
    return Replica(
        container_id=container_id,
        datanode_id=node,
        state=state,
        used_bytes=1_000,
        block_count=1,
        bcsid=bcsid,
        origin_datanode_id=node,
        replica_index=replica_index,
        is_empty=False,
        tree=None if root is None else summary(root),
        volume_id="volume-1",
        data_scan_at_ms=0,
        finding_count=finding_count,
        load_error=load_error,
        reported_at_ms=1,
    )


def container(
    state: ContainerState = ContainerState.CLOSED,
    *,
    container_id: int = 1,
    sequence_id: int = 5,
    pipeline: tuple[str, ...] = (),
    replication_factor: int = 3,
    committed_count: int = 1,
) -> Container:
    """Build a container."""
    return Container(
        container_id=container_id,
        state=state,
        replication_factor=replication_factor,
        sequence_id=sequence_id,
        state_since_ms=1,
        pipeline=pipeline,
        committed_count=committed_count,
    )


def volume(*, capacity_bytes: int = 100 * GIB, available_bytes: int = 90 * GIB) -> ReportedVolume:
    """Build a working volume."""
    return ReportedVolume("volume-1", "/data", capacity_bytes, available_bytes, 0, 0, False, 0, "")


@dataclass
class ScmWorld:
    """A control plane on a real state database, and its clock. Nodes are given by their ids."""

    path: Path
    options: ScmOptions = field(default_factory=ScmOptions)
    clock: FakeClock = field(default_factory=FakeClock)
    queues: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    kept: dict[str, tuple[OpState, int]] = field(default_factory=dict)  # op states, by node
    audit: Audit | None = None

    def __post_init__(self) -> None:
        """Open the state."""
        self.start()

    def start(self, *, is_cold: bool = False) -> None:
        """Open the state and build a control plane on it."""
        self.state = StateDatabase.open(self.path, map_bytes=MAP_BYTES, is_cold=is_cold)
        self.control = ControlPlane(
            self.state,
            clock=ScmClock(self.clock.now_ms, self.clock.monotonic_s),
            options=self.options,
            snapshots_path=self.path / "snapshots",
            audit=self.audit,
        )

    def restart(self, *, is_cold: bool = False) -> None:
        """Stop and start the control plane. State that was only in memory is lost."""
        self.state.close()
        self.start(is_cold=is_cold)

    def join(
        self,
        *nodes: str,
        racks: Sequence[str] = ("/rack-1",),
        boot_id: int = 1,
        layout_version: int = LAYOUT_VERSION,
    ) -> None:
        """Register nodes; the racks are assigned to them in rotation."""
        for i, node in enumerate(nodes):
            self.control.datanodes.register(
                Registration(
                    node,
                    f"{node}:9859",
                    racks[i % len(racks)],
                    "0.1.0",
                    "",
                    boot_id,
                    (volume(),),
                    layout_version=layout_version,
                )
            )

    def beat(
        self,
        node: str,
        *replicas: Replica,
        full: bool = False,
        outcomes: tuple[CommandOutcome, ...] = (),
        boot_id: int = 1,
    ) -> HeartbeatAnswer:
        """Send a heartbeat of a node with one report; return the answer."""
        report = NodeReplicaReport(full, 1, 0, is_last=True, replicas=replicas)
        return self.call(node, report, outcomes=outcomes, boot_id=boot_id)

    def call(
        self,
        node: str,
        *reports: NodeReplicaReport,
        outcomes: tuple[CommandOutcome, ...] = (),
        boot_id: int = 1,
    ) -> HeartbeatAnswer:
        """Send a heartbeat of a node with these reports; return the answer."""
        op_state, op_expiry_ms = self.kept.get(node, (None, 0))
        return self.control.datanodes.heartbeat(
            Heartbeat(
                node,
                boot_id,
                (volume(),),
                reports,
                outcomes,
                self.queues.get(node, ()),
                op_state,
                op_expiry_ms,
            )
        )

    def write(
        self, client_id: str, name: str, *sizes: int, hold: Sequence[str] = ()
    ) -> list[AllocatedBlockInfo]:
        """Allocate blocks, send reports of the chosen nodes except `hold`, and commit one key;
        return the blocks."""
        blocks = self.control.clients.allocate(client_id, sizes)
        for block in blocks:
            for endpoint in block.replicas:
                if endpoint.datanode_id not in hold:
                    self.beat(
                        endpoint.datanode_id,
                        replica(
                            endpoint.datanode_id,
                            ReplicaState.OPEN,
                            container_id=block.container_id,
                            bcsid=block.bcsid,
                            root=None,
                        ),
                    )
        self.control.clients.commit(
            client_id, [key(name, blocks, sizes)], may_replace=False, failed=()
        )
        return blocks

    def made_closed(self, *, roots: Sequence[int] = (7, 7, 7)) -> Container:
        """Write and close a container on three nodes, and report its replicas; return the
        container. `roots` are in the order of the node ids."""
        blocks = self.write("setup", f"setup-{self.state.term}-{len(self.state.keys)}", 10)
        container_id = blocks[0].container_id
        self.control.clients.finish("setup", close=True)
        nodes = sorted(endpoint.datanode_id for endpoint in blocks[0].replicas)
        for node, root in zip(nodes, roots, strict=True):
            answer = self.beat(
                node, replica(node, container_id=container_id, bcsid=blocks[0].bcsid, root=root)
            )
            self.execute(node, answer)
        made = self.state.containers.get(container_id)
        assert made is not None
        assert made.state is ContainerState.CLOSED
        return made

    def execute(self, node: str, answer: HeartbeatAnswer) -> None:
        """Send a heartbeat that reports all commands in `answer` as executed."""
        self.beat(node, outcomes=tuple(outcome(command) for command, _peers in answer.commands))

    def keep_alive(self, *nodes: str) -> None:
        """Send heartbeats of nodes, without reports."""
        for node in nodes:
            self.call(node)

    @contextmanager
    def running(self) -> Iterator["ScmWorld"]:
        """Yield this object, and close its state at the end."""
        try:
            yield self
        finally:
            self.state.close()

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve the control plane on a free port; yield its address."""
        with ThreadPoolExecutor(4) as executor:
            built = build_server(ScmService(self.control), "127.0.0.1:0", executor)
            built.server.start()
            try:
                yield built.address
            finally:
                built.server.stop(0).wait()


def key(name: str, blocks: Sequence[AllocatedBlockInfo], lengths: Sequence[int]) -> Key:
    """Return a key that consists of allocated blocks with these lengths."""
    return Key(
        name,
        sum(lengths),
        0,
        tuple(
            KeyBlock(block.container_id, block.local_id, block.bcsid, length)
            for block, length in zip(blocks, lengths, strict=True)
        ),
    )


def outcome(
    command: PendingCommand, state: OutcomeState = OutcomeState.EXECUTED, *, code: str = ""
) -> CommandOutcome:
    """Build a datanode's answer to a command."""
    return CommandOutcome(
        command.command_id,
        command.datanode_id,
        1,
        state,
        command.kind,
        command.container_id,
        code,
        "",
        b"",
    )


def pending(
    command_id: int,
    kind: CommandKind = CommandKind.RECONCILE,
    *,
    container_id: int = 0,
    node: str = "dn1",
    sent_at_s: float | None = None,
    queued_at_s: float = 0.0,
) -> PendingCommand:
    """Return a pending command. If `container_id` is 0, the id of the container is that of the
    command."""
    return PendingCommand(
        command_id,
        kind,
        container_id or command_id,
        node,
        sent_at_s=sent_at_s,
        queued_at_s=queued_at_s,
    )


def confirm(world: ScmWorld, *nodes: str) -> None:
    """Send full reports of nodes, with all replicas that the control plane has recorded."""
    for node in nodes:
        mine = [r for r in world.state.replicas.values() if r.datanode_id == node]
        world.beat(node, *mine, full=True)


def pass_time(world: ScmWorld, seconds: int, *alive: str) -> None:
    """Move the clock forward second by second, with heartbeats of the nodes `alive` and a tick of
    the control plane in each second."""
    for _ in range(seconds):
        world.clock.advance_s(1)
        for node in alive:
            world.call(node)
        world.control.tick()


def with_whole_replicas(path: Path, *nodes: str) -> ScmWorld:
    """Return a cluster of nodes, each with an intact replica of container 1."""
    world = ScmWorld(path)
    world.join(*nodes)
    with world.state.change() as change:
        change.put(world.state.containers, container())
    for node in nodes:
        world.beat(node, replica(node))
    return world
