"""Whatever the cluster: moves bring nodes closer, within limits, and harm no placement."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from health.racks import misplaced_count
from scm.cluster.allocate import TargetCandidate
from scm.replication.balancer.balance_moves import (
    BalanceLimits,
    Movable,
    Move,
    average_share,
    is_balanced,
    plan,
    used_share,
)

CAPACITY = 1_000
LIMITS = BalanceLimits(
    threshold_percent=5, node_percent_max=50, moved_bytes_max=300, node_bytes_max=120
)


class Cluster:
    """Nodes on racks, and containers on some of them; each replica takes space."""

    def __init__(self, racks: list[int], containers: list[tuple[int, list[int]]]) -> None:
        self.racks = {f"dn{i}": f"/r{rack}" for i, rack in enumerate(racks)}
        names = list(self.racks)
        self.sizes = [size for size, _ in containers]
        self.holders = [
            set(dict.fromkeys(names[k % len(names)] for k in places)) for _, places in containers
        ]

    def used(self, name: str) -> int:
        """Return the bytes on a node."""
        return sum(s for s, h in zip(self.sizes, self.holders, strict=True) if name in h)

    def nodes(self) -> list[TargetCandidate]:
        """Return the nodes as the balancer sees them."""
        return [
            TargetCandidate(name, rack, CAPACITY, CAPACITY - used, CAPACITY - used, used, 0)
            for name, rack in self.racks.items()
            for used in [self.used(name)]
        ]

    def movable_on(self, name: str) -> Iterator[Movable]:
        """Yield what may be moved from a node."""
        for i, (size, holders) in enumerate(zip(self.sizes, self.holders, strict=True)):
            if name in holders:
                others = tuple(self.racks[h] for h in sorted(holders) if h != name)
                yield Movable(i, size, frozenset(holders), others, len(holders), is_scattered=True)

    def misplaced(self, container: int) -> int:
        """Return how badly a container is spread."""
        return misplaced_count(
            [self.racks[name] for name in self.holders[container]],
            cluster_rack_count=len(set(self.racks.values())),
            required_count=len(self.holders[container]),
            is_scattered=True,
        )

    def apply(self, move: Move) -> None:
        """Carry a move out."""
        self.holders[move.container_id].remove(move.source_id)
        self.holders[move.container_id].add(move.target_id)


CLUSTERS = st.builds(
    Cluster,
    st.lists(st.integers(0, 3), min_size=2, max_size=10),
    st.lists(
        st.tuples(st.integers(1, 60), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
        max_size=25,
    ),
)


@settings(deadline=None, max_examples=150)
@given(CLUSTERS)
def test_moves_help_and_harm_nothing(cluster: Cluster) -> None:
    """No node crosses the average, no container is spread worse, and no limit is exceeded."""
    before = cluster.nodes()
    average = average_share(before)
    shares = {node.datanode_id: used_share(node) for node in before}
    misplaced = [cluster.misplaced(i) for i in range(len(cluster.sizes))]

    moves = plan(before, cluster.movable_on, LIMITS)

    assert moves == plan(before, cluster.movable_on, LIMITS)
    assert len(moves) == len({move.container_id for move in moves})
    for move in moves:
        assert move.source_id in cluster.holders[move.container_id]
        assert move.target_id not in cluster.holders[move.container_id]
        cluster.apply(move)
    for node in cluster.nodes():
        old, new = shares[node.datanode_id], used_share(node)
        assert abs(new - average) <= abs(old - average) + 1e-9
        assert (old - average) * (new - average) >= -1e-9
    assert all(cluster.misplaced(i) <= misplaced[i] for i in range(len(misplaced)))
    assert sum(move.size_bytes for move in moves) <= LIMITS.moved_bytes_max
    taking_part = {move.source_id for move in moves} | {move.target_id for move in moves}
    assert len(taking_part) <= max(2, len(before) // 2)
    for name in taking_part:
        moved = sum(m.size_bytes for m in moves if name in (m.source_id, m.target_id))
        assert moved <= LIMITS.node_bytes_max
    if is_balanced(before, LIMITS.threshold_percent):
        assert [] == moves
