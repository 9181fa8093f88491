"""Which replicas move: every rule at its edge, worked out by hand.

Nodes have 1,024 bytes and the threshold is 25 %, unless a test says otherwise, so that all shares
are exact and an edge is one byte wide.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence

import pytest

from scm.cluster.allocate import TargetCandidate
from scm.replication.balancer.balance_moves import (
    GIB,
    MOVES_MAX,
    BalanceLimits,
    Movable,
    Move,
    average_share,
    is_balanced,
    plan,
    used_share,
)

CAPACITY = 1_024
PLENTY = 1_000_000
QUARTER = BalanceLimits(25.0, node_percent_max=100, moved_bytes_max=PLENTY, node_bytes_max=PLENTY)


def node(
    name: str,
    used: int,
    *,
    scheduled: int = 0,
    capacity: int = CAPACITY,
    rack: str = "/r1",
    available: int = PLENTY,
) -> TargetCandidate:
    """Build a node that has room for everything unless `available` says how much."""
    return TargetCandidate(name, rack, capacity, available, available, used, scheduled)


def nodes_of(**used: int) -> list[TargetCandidate]:
    """Build nodes that use so many bytes."""
    return [node(name, count) for name, count in used.items()]


def movable(
    container_id: int,
    size_bytes: int,
    *,
    holders: Sequence[str] = (),
    other_racks: Sequence[str] = (),
    required_count: int = 1,
    is_scattered: bool = False,
) -> Movable:
    """Build a replica that no rule about racks binds."""
    return Movable(
        container_id,
        size_bytes,
        frozenset(holders),
        tuple(other_racks),
        required_count,
        is_scattered,
    )


class Replicas:
    """What may be moved from each node; notes which nodes were asked and what was read."""

    def __init__(self, on: Mapping[str, Sequence[Movable]] | None = None) -> None:
        self._on = on or {}
        self.asked: list[str] = []
        self.read: list[int] = []

    def __call__(self, name: str) -> Iterator[Movable]:
        """Yield what may be moved from a node."""
        self.asked.append(name)
        return self._each(name)

    def _each(self, name: str) -> Iterator[Movable]:
        for one in self._on.get(name, ()):
            self.read.append(one.container_id)
            yield one


def planned(
    nodes: Sequence[TargetCandidate], limits: BalanceLimits = QUARTER, **on: Sequence[Movable]
) -> list[tuple[int, str, str, int]]:
    """Return the moves as container, source, target and size."""
    return [
        (move.container_id, move.source_id, move.target_id, move.size_bytes)
        for move in plan(nodes, Replicas(on), limits)
    ]


class TestLimits:
    def test_the_defaults_are_those_of_ozone(self) -> None:
        """10 % off, 20 % of the nodes, 500 GiB in all, 26 GiB per node, a thousand moves."""
        assert BalanceLimits(10.0, 20, 536_870_912_000, 27_917_287_424) == BalanceLimits()
        assert 1_073_741_824 == GIB
        assert 1_000 == MOVES_MAX

    def test_whole_copies_are_not_scattered(self) -> None:
        """Only shards say that they are."""
        assert not Movable(1, 1, frozenset(), (), 3).is_scattered


class TestShares:
    @pytest.mark.parametrize(
        ("used", "scheduled", "capacity", "expected"),
        [
            (0, 0, 1_024, 0.0),
            (256, 0, 1_024, 0.25),
            (256, 128, 1_024, 0.375),
            (1, 0, 1, 1.0),
            (3, 0, 0, 3.0),
        ],
    )
    def test_promised_space_counts_as_used(
        self, used: int, scheduled: int, capacity: int, expected: float
    ) -> None:
        """A node without any capacity counts as one byte large."""
        made = node("a", used, scheduled=scheduled, capacity=capacity)

        assert expected == used_share(made)
        assert expected == average_share([made])

    def test_the_average_is_that_of_the_bytes_not_of_the_nodes(self) -> None:
        """A large node weighs more than a small one."""
        small = node("small", 1_024, capacity=1_024)
        large = node("large", 256, scheduled=256, capacity=3_072)

        assert 0.375 == average_share([small, large])

    def test_no_nodes_use_nothing(self) -> None:
        """A cluster that has no node in service is no error."""
        assert 0.0 == average_share([])


class TestIsBalanced:
    @pytest.mark.parametrize(
        ("used", "expected"),
        [
            ((), True),
            ((512, 512), True),
            ((768, 256), True),  # exactly 25 % off
            ((769, 255), False),
            ((512, 769, 255), False),  # one is where it should be
            ((769, 427, 426, 426), False),  # only too full
            ((255, 597, 598, 598), False),  # only too empty
        ],
    )
    def test_cluster_is_balanced_within_the_threshold(
        self, used: Sequence[int], expected: bool
    ) -> None:
        """The average of all lists but the empty one is 512 of 1,024 bytes."""
        nodes = [node(f"dn{i}", count) for i, count in enumerate(used)]

        assert expected is is_balanced(nodes, 25.0)

    def test_a_balanced_cluster_is_left_alone(self) -> None:
        """No replica is even looked at."""
        replicas = Replicas({"a": [movable(1, 10)]})

        assert [] == plan(nodes_of(a=768, b=256), replicas, QUARTER)
        assert [] == replicas.asked


class TestSources:
    @pytest.mark.parametrize(
        ("used", "expected"),
        [
            # The average is 512: too full is above 768, too empty below 256.
            ({"low": 256, "half": 600, "rest": 392, "even": 512, "full": 800}, ["full"]),
            ({"low": 255, "half": 600, "rest": 393, "even": 512, "full": 800}, ["full", "half"]),
            ({"edge": 768, "low": 256, "rest": 480, "full": 800, "poor": 256}, ["full"]),
            ({"c": 769, "low": 256, "rest": 479, "full": 800, "poor": 256}, ["full", "c"]),
            ({"b": 800, "a": 800, "c": 320, "d": 320, "e": 320}, ["a", "b"]),
            ({"low": 128, "a": 640, "b": 640, "even": 640}, ["a", "b", "even"]),
        ],
    )
    def test_the_fullest_come_first(self, used: dict[str, int], expected: list[str]) -> None:
        """Any node above the average gives only if another is too empty; equal ones by name."""
        replicas = Replicas()

        plan(nodes_of(**used), replicas, QUARTER)

        assert expected == replicas.asked


class TestHowMuch:
    def test_a_move_is_told_whole(self) -> None:
        """The move has the replica, its source, its target and its size."""
        found = plan(nodes_of(full=800, empty=224), Replicas({"full": [movable(7, 10)]}), QUARTER)

        assert [Move(7, "full", "empty", 10)] == found

    def test_moves_bring_both_nodes_to_the_average(self) -> None:
        """Five moves of 64 bytes lead from 832 and 192 to 512. The next replica ends the
        reading.
        """
        replicas = Replicas({"full": [movable(i, 64) for i in range(1, 9)]})

        moves = plan(nodes_of(full=832, empty=192), replicas, QUARTER)

        assert [1, 2, 3, 4, 5] == [move.container_id for move in moves]
        assert [1, 2, 3, 4, 5, 6] == replicas.read

    @pytest.mark.parametrize(("size_bytes", "expected"), [(300, ["empty"]), (301, []), (0, [])])
    def test_the_source_does_not_fall_below_the_average(
        self, size_bytes: int, expected: list[str]
    ) -> None:
        """The average is 400; the target could take 400 bytes. Nothing is gained by no bytes."""
        found = planned(nodes_of(full=700, empty=0, mid=500), full=[movable(1, size_bytes)])

        assert expected == [target for _, _, target, _ in found]

    @pytest.mark.parametrize(("size_bytes", "expected"), [(200, 1), (201, 0)])
    def test_the_target_does_not_rise_above_the_average(
        self, size_bytes: int, expected: int
    ) -> None:
        """The average is 400; the source could give 400 bytes."""
        found = planned(nodes_of(full=800, a=200, b=200), full=[movable(1, size_bytes)])

        assert expected == len(found)

    def test_an_iteration_has_a_greatest_number_of_moves(self) -> None:
        """The source has 1,003 replicas. 1,000 of them move, and one more is read."""
        replicas = Replicas({"full": [movable(i, 1) for i in range(1_003)]})
        nodes = [node("full", 4_096, capacity=4_096), node("empty", 0, capacity=4_096)]

        moves = plan(nodes, replicas, QUARTER)

        assert list(range(1_000)) == [move.container_id for move in moves]
        assert 1_001 == len(replicas.read)

    @pytest.mark.parametrize("maxima", [(PLENTY, 100), (100, PLENTY)])
    def test_no_more_bytes_move_than_allowed(self, maxima: tuple[int, int]) -> None:
        """60 leave 40 for others: 41 are too many, 40 are not, and then the node is closed.

        A small replica that comes later may still move: the first that is too large ends nothing.
        """
        limits = BalanceLimits(25.0, 100, *maxima)
        sizes = [60, 41, 40, 1, 1]
        replicas = Replicas(
            {"full": [movable(i, size_bytes) for i, size_bytes in enumerate(sizes)]}
        )

        moves = plan(nodes_of(full=1_000, a=0, b=0), replicas, limits)

        assert [0, 2] == [move.container_id for move in moves]
        assert [0, 1, 2, 3] == replicas.read

    @pytest.mark.parametrize("maxima", [(PLENTY, 1), (1, PLENTY)])
    def test_move_of_one_byte_fits_limits_of_one_byte(self, maxima: tuple[int, int]) -> None:
        """The sums begin at zero."""
        ones = [movable(1, 1), movable(2, 1)]

        found = planned(nodes_of(full=1_000, empty=0), BalanceLimits(25.0, 100, *maxima), full=ones)

        assert [(1, "full", "empty", 1)] == found

    def test_the_bytes_of_all_nodes_are_limited_together(self) -> None:
        """The bytes moved from the first source leave none for the second, which is not read."""
        limits = BalanceLimits(25.0, 100, moved_bytes_max=100, node_bytes_max=PLENTY)
        replicas = Replicas({"a": [movable(1, 100)], "b": [movable(2, 1), movable(3, 1)]})

        moves = plan(nodes_of(a=1_000, b=900, c=0, d=0), replicas, limits)

        assert [1] == [move.container_id for move in moves]
        assert [1, 2] == replicas.read

    @pytest.mark.parametrize(("size_bytes", "target"), [(40, "low"), (41, "mid")])
    def test_a_target_takes_no_more_than_a_node_may(self, size_bytes: int, target: str) -> None:
        """The emptiest has got 60 of 100 bytes from the first source when the second comes."""
        limits = BalanceLimits(25.0, 100, PLENTY, node_bytes_max=100)

        found = planned(
            nodes_of(a=1_000, b=900, low=0, mid=100),
            limits,
            a=[movable(1, 60)],
            b=[movable(2, size_bytes)],
        )

        assert [(1, "a", "low", 60), (2, "b", target, size_bytes)] == found


class TestHowManyNodes:
    @pytest.mark.parametrize(
        ("percent", "expected"), [(0, 2), (19, 2), (20, 2), (29, 2), (30, 3), (39, 3), (40, 4)]
    )
    def test_a_part_of_the_nodes_takes_part(self, percent: int, expected: int) -> None:
        """At least two of ten nodes take part, because a move needs two. The others follow
        later.
        """
        limits = BalanceLimits(25.0, percent, PLENTY, PLENTY)
        nodes = [node("full", 1_024), *(node(f"dn{i}", 100) for i in range(9))]

        found = planned(nodes, limits, full=[movable(i, 10) for i in range(8)])

        assert 8 == len(found)
        assert expected == len({"full", *(target for _, _, target, _ in found)})

    def test_a_source_that_comes_too_late_is_closed(self) -> None:
        """Two of four take part already; that one of them could be the target does not help."""
        replicas = Replicas({"a": [movable(1, 60)], "b": [movable(2, 10), movable(3, 10)]})

        moves = plan(
            nodes_of(a=1_000, b=900, c=0, d=100), replicas, BalanceLimits(25.0, 50, PLENTY, PLENTY)
        )

        assert [Move(1, "a", "c", 60)] == moves
        assert [1, 2] == replicas.read

    def test_the_source_is_counted_before_its_target(self) -> None:
        """Three of four nodes may take part. The second source leaves no place for the emptiest
        node.
        """
        found = planned(
            nodes_of(a=1_000, b=900, c=0, d=10),
            BalanceLimits(25.0, 75, PLENTY, PLENTY),
            a=[movable(1, 60)],
            b=[movable(2, 10)],
        )

        assert [(1, "a", "c", 60), (2, "b", "c", 10)] == found


class TestTarget:
    def test_a_container_moves_once(self) -> None:
        """The second source has a replica of the same container, and another one."""
        found = planned(
            nodes_of(a=1_000, b=900, c=0, d=10),
            a=[movable(1, 5, holders="ab")],
            b=[movable(1, 5, holders="ab"), movable(2, 5, holders="b")],
        )

        assert [(1, "a", "c", 5), (2, "b", "c", 5)] == found

    def test_the_emptiest_is_chosen_by_share(self) -> None:
        """300 of 2,048 bytes are less than 200 of 1,024."""
        nodes = [
            *nodes_of(full=1_000, small=200),
            node("large", 300, capacity=2_048),
            node("promised", 0, scheduled=400),
        ]

        assert [(1, "full", "large", 10)] == planned(nodes, full=[movable(1, 10)])

    def test_the_next_goes_where_there_is_less_now(self) -> None:
        """A target is as full as the moves so far have made it."""
        moving = [movable(1, 20), movable(2, 20), movable(3, 20)]

        found = planned(nodes_of(full=1_000, a=0, b=10), full=moving)

        assert ["a", "b", "a"] == [target for _, _, target, _ in found]

    def test_a_holder_is_no_target(self) -> None:
        """One node never has two replicas of a container, however empty it is."""
        nodes = nodes_of(full=1_000, holder=0, other=100)

        assert [(1, "full", "other", 10)] == planned(
            nodes, full=[movable(1, 10, holders=("full", "holder"))]
        )

    @pytest.mark.parametrize(("available", "target"), [(20, "tight"), (19, "other")])
    def test_a_target_has_room_for_twice_the_replica(self, available: int, target: str) -> None:
        """Others may write there while the copy is under way."""
        nodes = [*nodes_of(full=1_000, other=100), node("tight", 0, available=available)]

        assert [(1, "full", target, 10)] == planned(nodes, full=[movable(1, 10)])

    def test_equal_targets_take_turns_by_container(self) -> None:
        """The lowest checksum of container and node wins, and not always the same node's."""
        names = [f"dn{i}" for i in range(8)]
        nodes = nodes_of(full=1_000, **dict.fromkeys(names, 10))
        expected, found = [], []
        for container_id in (4, 50, 600, 7_000, 80_000):
            sums = {zlib.crc32(f"{container_id}:{name}".encode()): name for name in names}
            expected.append(sums[min(sums)])
            replicas = Replicas({"full": [movable(container_id, 10)]})
            found += [move.target_id for move in plan(nodes, replicas, QUARTER)]

        assert expected == found
        assert len(set(expected)) > 2


class TestRacks:
    @pytest.mark.parametrize(
        ("source", "others", "is_scattered", "expected"),
        [
            # Whole copies: on two racks.
            ("/r1", ("/r1", "/r2"), False, ["on1"]),  # as it was
            ("/r2", ("/r1", "/r1"), False, ["on2"]),  # on /r1 all three would be on one rack
            ("/r1", ("/r1", "/r1"), False, ["on1"]),  # as bad as it was
            ("/r1", ("/r2", "/r2"), False, ["on1"]),
            # Shards: on three racks.
            ("/r3", ("/r1", "/r2"), True, ["on3"]),  # elsewhere two would be on one rack
            ("/r1", ("/r2", "/r3"), True, ["on1"]),
            ("/r1", ("/r1", "/r2"), True, ["on1"]),  # as bad as it was
            ("/r3", ("/r1", "/r2"), False, ["on1"]),  # what binds shards does not bind copies
        ],
    )
    def test_a_container_is_not_spread_worse(
        self, source: str, others: Sequence[str], is_scattered: bool, expected: list[str]
    ) -> None:
        """The emptiest is on the first rack, then the second, then the third."""
        nodes = [
            node("full", 1_000, rack=source),
            node("on1", 0, rack="/r1"),
            node("on2", 10, rack="/r2"),
            node("on3", 20, rack="/r3"),
        ]
        one = movable(1, 10, other_racks=others, required_count=3, is_scattered=is_scattered)

        found = planned(nodes, full=[one])

        assert expected == [target for _, _, target, _ in found]

    def test_replica_does_not_move_to_a_worse_rack(self) -> None:
        """Two copies are on two racks, and only nodes on the other copy's rack are empty."""
        nodes = [node("full", 1_000, rack="/r2"), node("a", 0), node("b", 0)]

        assert [] == planned(nodes, full=[movable(1, 10, other_racks=("/r1",), required_count=2)])

    def test_better_is_no_worse(self) -> None:
        """Two copies on one rack, and the other rack is empty."""
        nodes = [node("full", 1_000), node("a", 0, rack="/r2")]
        one = movable(1, 10, other_racks=("/r1",), required_count=2)

        assert [(1, "full", "a", 10)] == planned(nodes, full=[one])
