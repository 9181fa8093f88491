"""The common base of simulated datanodes: time, random numbers, and checks of all commands.

Each guarantee of the control plane is checked at the time when it could be violated:

- When a delete command arrives, another good copy of the same index exists, according to the facts
  that the control plane can know.
- When the delete removes a replica, that copy still exists, and the container can still be read.
- When a reconstruct command arrives, no other datanode is rebuilding the same shards, or has
  rebuilt them.
- When a heartbeat is answered, neither a datanode nor the cluster exceeds its limits.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

import grpc

from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.v1 import container_pb2, scm_pb2

RECONSTRUCT_WEIGHT: Final = 3
REPLICATION_LIMIT: Final = 20
OUT_OF_SERVICE_LIMIT: Final = 40
DELETE_LIMIT: Final = 40
GOOD_ROOT: Final = 7


class WatchedTask(Protocol):
    """A command in the queue of a simulated datanode."""

    command: scm_pb2.Command

    @property
    def kind(self) -> str:
        """The type of the command: the name of the field that is set."""

    @property
    def made_count(self) -> int:
        """The number of replicas that the command makes."""


class WatchedNode(Protocol):
    """A simulated datanode, with the facts by which its commands are judged."""

    datanode_id: str
    is_alive: bool
    silent_since_s: float
    op_state: str
    replicas: dict[int, container_pb2.ReplicaReport]
    changed: dict[int, container_pb2.ReplicaReport]

    @property
    def tasks(self) -> Mapping[int, WatchedTask]:
        """The commands of the datanode, by command id."""


Node = TypeVar("Node", bound=WatchedNode)


@dataclass
class World(Generic[Node]):
    """The state that all simulated datanodes share, counts of commands, and the violated guarantees
    (`broken`) with their times."""

    seed: int
    in_flight_limit: int = 0  # limit on replicas in flight; 0 = none
    believed_s: float = 300.0  # time for which a silent datanode still counts for the control plane
    now_s: float = 0.0
    loss_percent: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    holders: dict[int, set[str]] = field(default_factory=dict)
    data_counts: dict[int, int] = field(default_factory=dict)  # of erasure-coded containers
    orders: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    counts: Counter[str] = field(default_factory=Counter)
    held_most: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    fewest_left: int = 99  # good copies that remained when one was removed by command
    first_order_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Seed the random numbers."""
        nowhere = grpc.insecure_channel("localhost:0")
        self.stub = Stub(nowhere, SCM)
        self.chance = random.Random(self.seed)
        self._coming: dict[str, int] = {}
        self._coming_count = 0

    def is_lost(self) -> bool:
        """Return True at random, with `loss_percent`: the present message is then lost."""
        return self.chance.randrange(100) < self.loss_percent

    def judge_order(self, node: WatchedNode, command: scm_pb2.Command, kind: str) -> None:
        """Check a command that arrives at a datanode, and add it to the digest of all commands. The
        digest must be the same for the same seed."""
        inner = getattr(command, kind)
        mine = node.replicas.get(getattr(inner, "container_id", 0))
        if kind == "delete" and mine is not None and is_good(mine) and not mine.is_empty:
            self.counts["deletes of good replicas"] += 1
            if not self._is_elsewhere(mine, without=node.datanode_id, is_knowable=True):
                self._note(f"{mine.container_id}#{mine.replica_index} is to go, it is the last")
        if kind == "reconstruct":
            self._judge_rebuilding(command)
        self.counts[kind] += 1
        self.orders.update(
            f"{self.now_s} {node.datanode_id} {command.command_id} {kind} ".encode()
            + inner.SerializeToString(deterministic=True)
        )
        self.first_order_s.setdefault(kind, self.now_s)

    def _judge_rebuilding(self, command: scm_pb2.Command) -> None:
        """Check that no other datanode is rebuilding the same shards, or has rebuilt them.

        The control plane knows a rebuilt shard only after its datanode reported it. If a shard
        comes back with its datanode during or after the rebuild, that is no violation.
        """
        container_id = command.reconstruct.container_id
        wanted = {shard.replica_index for shard in command.reconstruct.targets}
        for node in self.nodes.values():
            if not node.is_alive:
                continue
            untold = node.changed.get(container_id)
            is_whole = untold is not None and untold.state == container_pb2.CLOSED
            if untold is not None and is_whole and untold.replica_index in wanted:
                self._note(f"{container_id}: shards {sorted(wanted)} are made again")
            for task in node.tasks.values():
                made = task.command.reconstruct
                if (
                    task.command.command_id != command.command_id
                    and made.container_id == container_id
                    and wanted.intersection(shard.replica_index for shard in made.targets)
                ):
                    self._note(f"{container_id}: shards {sorted(wanted)} are made twice")

    def judge_removal(self, node: WatchedNode, container_id: int) -> None:
        """Check the replicas that remain after a delete."""
        mine = node.replicas[container_id]
        if not is_good(mine) or mine.is_empty:
            return
        left = self._spare_count(container_id, without=node.datanode_id)
        self.fewest_left = min(self.fewest_left, left)
        if left < 1:
            self._note(f"the last good copy of {container_id} was removed")
        if not self._is_elsewhere(mine, without=node.datanode_id):
            self._note(f"the last good {container_id}#{mine.replica_index} was removed")

    def judge_load(self, node: WatchedNode) -> None:
        """Check that the commands of a datanode, and of all datanodes together, do not exceed the
        limits."""
        self.counts["heartbeats judged"] += 1
        held = Counter(task.kind for task in node.tasks.values())
        weighted = held["replicate"] + RECONSTRUCT_WEIGHT * held["reconstruct"]
        is_out = node.op_state not in {"", "IN_SERVICE"}
        limit = OUT_OF_SERVICE_LIMIT if is_out else REPLICATION_LIMIT
        if held["reconstruct"]:  # a task that begins below the limit may end above it
            limit += RECONSTRUCT_WEIGHT - 1
        self._compare("out of service" if is_out else "in service", weighted, limit, node)
        self._compare("delete", held["delete"], DELETE_LIMIT, node)
        self.note_coming(node)
        self._compare("in flight", self._coming_count, self.in_flight_limit, node)

    def note_coming(self, node: WatchedNode) -> None:
        """Update the total number of replicas that are being made, with the commands of this
        datanode. A dead datanode counts as 0."""
        count = sum(task.made_count for task in node.tasks.values()) if node.is_alive else 0
        self._coming_count += count - self._coming.get(node.datanode_id, 0)
        self._coming[node.datanode_id] = count

    def _compare(self, what: str, count: int, limit: int, node: WatchedNode) -> None:
        self.held_most[what] = max(self.held_most[what], count)
        if limit and count > limit:
            self._note(f"{node.datanode_id} ({node.op_state}): {count} {what}, {limit} may be")

    def _note(self, what: str) -> None:
        self.broken.append(f"at {self.now_s:.0f} s: {what}")

    def _others(self, container_id: int, without: str) -> list[Node]:
        names = self.holders.get(container_id, ())
        return [self.nodes[name] for name in names if name != without]

    def _spare_count(self, container_id: int, *, without: str) -> int:
        """Return the number of good copies on living nodes other than `without`.

        For an erasure-coded container, return the number of different shards minus the number
        needed for a read, plus one. The container can be read if the result is at least 1.
        """
        found = [
            node.replicas[container_id].replica_index
            for node in self._others(container_id, without)
            if node.is_alive and is_good(node.replicas[container_id])
        ]
        data_count = self.data_counts.get(container_id, 1)
        return len(found) if data_count == 1 else len(set(found)) - data_count + 1

    def _is_elsewhere(
        self, mine: container_pb2.ReplicaReport, *, without: str, is_knowable: bool = False
    ) -> bool:
        """Return True if another datanode has a good copy of the same index.

        With `is_knowable`, judge by the facts that the control plane can know. Then a node that
        became silent less than `believed_s` ago counts, and so does a replica that has been damaged
        and whose damage is not reported yet.
        """
        for node in self._others(mine.container_id, without):
            replica = node.replicas[mine.container_id]
            silent_s = 0.0 if node.is_alive else self.now_s - node.silent_since_s
            is_there = silent_s <= (self.believed_s if is_knowable else 0)
            is_told_good = is_good(replica) or (is_knowable and mine.container_id in node.changed)
            if is_there and is_told_good and replica.replica_index == mine.replica_index:
                return True
        return False


def is_good(replica: container_pb2.ReplicaReport) -> bool:
    """Return True if a replica is closed and has the good root."""
    return replica.state == container_pb2.CLOSED and replica.tree.root == GOOD_ROOT


def replica_report(
    container_id: int,
    *,
    state: container_pb2.ReplicaState = container_pb2.CLOSED,
    index: int = 0,
    used_bytes: int = 10**9,
    is_empty: bool = False,
    bcsid: int = 5,
) -> container_pb2.ReplicaReport:
    """Return the report of a replica with the good root."""
    tree = container_pb2.TreeSummary(
        algorithm=container_pb2.TREE_XXH3_64, root=GOOD_ROOT, generation=1, block_count=1
    )
    is_written_to = state in {container_pb2.OPEN, container_pb2.CLOSING}
    return container_pb2.ReplicaReport(
        container_id=container_id,
        state=state,
        bcsid=bcsid,
        block_count=0 if is_empty else 1,
        used_bytes=0 if is_empty else used_bytes,
        replica_index=index,
        is_empty=is_empty,
        tree=None if is_written_to else tree,
        volume_id="v",
    )
