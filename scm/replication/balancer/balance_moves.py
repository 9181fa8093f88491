"""Chooses the replicas to move, so that all datanodes become about equally full. No I/O.

The rules are those of the balancers of HDFS and Ozone. A datanode is too full if its used share is
above the used share of the cluster by more than a threshold. It is too empty if its used share is
below by more than the threshold. A move goes from a datanode above the average to a datanode below
the average, and neither crosses the average. The target has no replica of the container, and the
replicas are not on fewer racks after the move.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from health.racks import misplaced_count
from scm.cluster.allocate import TargetCandidate, tie

GIB: Final = 1024**3
MOVES_MAX: Final = 1_000  # in one iteration


@dataclass(frozen=True, slots=True)
class BalanceLimits:
    """Limits of one iteration of the balancer (Ozone's defaults)."""

    threshold_percent: float = 10.0
    node_percent_max: int = 20  # nodes that take part
    moved_bytes_max: int = 500 * GIB
    node_bytes_max: int = 26 * GIB  # out of one node, or into one node


@dataclass(frozen=True, slots=True)
class Movable:
    """A replica that can be moved.

    Its container is closed and healthy, and no command is pending for it. `holders` are the
    datanodes with a replica of the container.
    """

    container_id: int
    size_bytes: int
    holders: frozenset[str]
    other_racks: tuple[str, ...]  # racks of the other replicas
    required_count: int
    is_scattered: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A replica that is copied to another datanode and then removed at its source."""

    container_id: int
    source_id: str
    target_id: str
    size_bytes: int


def used_share(node: TargetCandidate) -> float:
    """Return the share of a datanode's capacity that is used or reserved, from 0 to 1."""
    return (node.used_bytes + node.scheduled_bytes) / max(1, node.capacity_bytes)


def average_share(nodes: Sequence[TargetCandidate]) -> float:
    """Return the share of the total capacity of these datanodes that is used or reserved."""
    used = sum(node.used_bytes + node.scheduled_bytes for node in nodes)
    return used / max(1, sum(node.capacity_bytes for node in nodes))


def is_balanced(nodes: Sequence[TargetCandidate], threshold_percent: float) -> bool:
    """Return True if the used share of each datanode is within the threshold of the average."""
    average = average_share(nodes)
    return all(abs(used_share(n) - average) * 100 <= threshold_percent for n in nodes)


def plan(
    nodes: Sequence[TargetCandidate],
    movable_on: Callable[[str], Iterable[Movable]],
    limits: BalanceLimits,
) -> list[Move]:
    """Return the moves of one iteration.

    Return an empty list if the datanodes are balanced, or if no move helps. `nodes` are the
    reachable datanodes in service. `movable_on` returns the replicas of a datanode that can be
    moved; it is called for one source after another, only as far as necessary.
    """
    if is_balanced(nodes, limits.threshold_percent):
        return []
    iteration = _Iteration(nodes, limits)
    for source_id in iteration.sources():
        for movable in movable_on(source_id):
            if not iteration.is_open(source_id):
                break
            iteration.try_move(source_id, movable)
    return iteration.moves


class _Iteration:
    """An iteration of the balancer: the chosen moves, and the datanodes after these moves."""

    def __init__(self, nodes: Sequence[TargetCandidate], limits: BalanceLimits) -> None:
        self.moves: list[Move] = []
        self._nodes = {node.datanode_id: node for node in nodes}
        self._limits = limits
        self._average = average_share(nodes)
        self._racks = len({node.rack for node in nodes})
        self._node_count_max = max(2, len(nodes) * limits.node_percent_max // 100)
        self._taking_part: set[str] = set()
        self._moved: dict[str, int] = {}  # bytes out of or into a node
        self._moved_bytes = 0
        self._containers: set[int] = set()

    def sources(self) -> list[str]:
        """Return the datanodes from which replicas move away, the fullest first.

        These are the datanodes that are too full. If some datanodes are too empty, these are all
        datanodes above the average.
        """
        margin = self._limits.threshold_percent / 100
        shares = {name: used_share(node) for name, node in self._nodes.items()}
        fullest = sorted(shares, key=lambda name: (-shares[name], name))
        too_full = [name for name in fullest if shares[name] > self._average + margin]
        if any(share < self._average - margin for share in shares.values()):
            return [name for name in fullest if shares[name] > self._average]
        return too_full

    def is_open(self, source_id: str) -> bool:
        """Return True if more replicas may move away from this datanode in this iteration."""
        return (
            len(self.moves) < MOVES_MAX
            and used_share(self._nodes[source_id]) > self._average
            and self._moved.get(source_id, 0) < self._limits.node_bytes_max
            and self._moved_bytes < self._limits.moved_bytes_max
            and self._may_take_part(source_id)
        )

    def try_move(self, source_id: str, movable: Movable) -> None:
        """Add a move of this replica to the best target.

        Add nothing if no target improves the balance. Only one replica of a container is moved per
        iteration, because a move changes the facts about the other replicas.
        """
        if movable.container_id in self._containers:
            return
        source, size_bytes = self._nodes[source_id], movable.size_bytes
        after = replace(source, used_bytes=source.used_bytes - size_bytes)
        if (
            not size_bytes
            or used_share(after) < self._average
            or not self._fits(source_id, size_bytes)
        ):
            return
        able = [
            node
            for name, node in self._nodes.items()
            if name not in movable.holders
            and self._fits(name, size_bytes)
            and self._may_take_part(name, beside=source_id)
            and node.has_room(2 * size_bytes)
            and used_share(replace(node, used_bytes=node.used_bytes + size_bytes)) <= self._average
            and self._is_no_worse(movable, source.rack, node.rack)
        ]
        if not able:
            return
        key = movable.container_id
        target = min(able, key=lambda n: (used_share(n), tie(key, n.datanode_id)))
        self._move(Move(key, source_id, target.datanode_id, size_bytes))

    def _fits(self, name: str, size_bytes: int) -> bool:
        return (
            self._moved.get(name, 0) + size_bytes <= self._limits.node_bytes_max
            and self._moved_bytes + size_bytes <= self._limits.moved_bytes_max
        )

    def _may_take_part(self, name: str, *, beside: str = "") -> bool:
        others = self._taking_part | ({beside} if beside else set())
        return name in others or len(others) < self._node_count_max

    def _is_no_worse(self, movable: Movable, source_rack: str, target_rack: str) -> bool:
        before, after = (
            misplaced_count(
                [*movable.other_racks, rack],
                cluster_rack_count=self._racks,
                required_count=movable.required_count,
                is_scattered=movable.is_scattered,
            )
            for rack in (source_rack, target_rack)
        )
        return after <= before

    def _move(self, move: Move) -> None:
        self.moves.append(move)
        self._containers.add(move.container_id)
        self._moved_bytes += move.size_bytes
        for name, sign in ((move.source_id, -1), (move.target_id, 1)):
            node = self._nodes[name]
            self._nodes[name] = replace(node, used_bytes=node.used_bytes + sign * move.size_bytes)
            self._moved[name] = self._moved.get(name, 0) + move.size_bytes
            self._taking_part.add(name)
