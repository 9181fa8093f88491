"""Which replica is scanned next, and how fast: decisions without a store."""

from dataclasses import replace

from agent.runtime.scanning import IDLE_MAX_S, PACE_BURST_S, Pace, ScanPolicy, next_due
from agent.store.facts import ReplicaFacts
from merkle.replica import Bcsid, ContainerId, ReplicaState
from tests.support.clock import FakeClock

HOUR_S = 3600
NOW_MS = 100 * HOUR_S * 1000
POLICY = ScanPolicy(data_interval_s=10 * HOUR_S, gap_min_s=900)


def facts(container_id: int, scanned_hours_ago: float | None, **changes: object) -> ReplicaFacts:
    """Return a closed replica that was scanned then; None is never."""
    at_ms = 0 if scanned_hours_ago is None else NOW_MS - int(scanned_hours_ago * HOUR_S * 1000)
    result = ReplicaFacts(
        container_id=ContainerId(container_id),
        state=ReplicaState.CLOSED,
        former_state=None,
        replica_index=0,
        bcsid=Bcsid(0),
        bytes_used=1,
        block_count=1,
        origin_datanode_id="",
        volume_id="v",
        tree=None,
        data_scan_at_ms=at_ms,
        finding_count=0,
    )
    return replace(result, **changes)  # type: ignore[arg-type]


def chosen(*replicas: ReplicaFacts, resting: frozenset[int] = frozenset()) -> int | None:
    """Return the id of the replica that is scanned next."""
    best, _ = next_due(replicas, now_ms=NOW_MS, policy=POLICY, is_resting=resting.__contains__)
    return None if best is None else best.container_id


class TestNextDue:
    def test_never_scanned_comes_before_all(self) -> None:
        """A replica that nobody has read may be damaged since it was written."""
        assert 2 == chosen(facts(1, 99), facts(2, None), facts(3, 50))

    def test_then_the_oldest_scan(self) -> None:
        """The longest unread is read first."""
        assert 3 == chosen(facts(1, 11), facts(3, 30), facts(2, 20))

    def test_then_the_lowest_id(self) -> None:
        """Equal ages have one order, so that a round is repeatable."""
        assert 4 == chosen(facts(9, None), facts(4, None))

    def test_nothing_is_read_twice_within_the_interval(self) -> None:
        """And the worker learns when to look again."""
        replicas = [facts(1, 9.99), facts(2, 1)]

        best, wait_s = next_due(replicas, now_ms=NOW_MS, policy=POLICY, is_resting=lambda _: False)

        assert best is None
        assert 0.01 * HOUR_S >= wait_s > 0

    def test_a_long_wait_is_cut(self) -> None:
        """New containers must not wait for an old one's interval."""
        _, wait_s = next_due(
            [facts(1, 1)], now_ms=NOW_MS, policy=POLICY, is_resting=lambda _: False
        )

        assert IDLE_MAX_S == wait_s

    def test_a_scan_in_the_future_is_a_clock_that_jumped(self) -> None:
        """Such a replica is due, or nobody would read it for years."""
        assert 1 == chosen(facts(1, -5_000))

    def test_open_replicas_are_not_scanned(self) -> None:
        """Their bytes may still change."""
        open_states = set(ReplicaState) - {
            ReplicaState.CLOSED,
            ReplicaState.QUASI_CLOSED,
            ReplicaState.UNHEALTHY,
        }
        replicas = [facts(number, None, state=state) for number, state in enumerate(open_states)]

        assert chosen(*replicas) is None

    def test_unhealthy_replicas_are_scanned(self) -> None:
        """Their tree has to follow what the medium does."""
        assert 1 == chosen(facts(1, None, state=ReplicaState.UNHEALTHY))

    def test_a_replica_that_was_just_tried_rests(self) -> None:
        """A scan that cannot commit must not run in circles."""
        assert 2 == chosen(facts(1, None), facts(2, None), resting=frozenset({1}))


class TestPace:
    def test_a_reader_is_kept_at_its_rate(self) -> None:
        """Ten reads of a tenth of the rate take a second, after the first burst."""
        clock, waited = FakeClock(), []

        def wait(seconds: float) -> None:
            waited.append(seconds)
            clock.advance_s(seconds)

        pace = Pace(1_000, wait, clock)
        for _ in range(30):
            pace(100)

        assert abs(3.0 - sum(waited)) < 0.001

    def test_an_idle_reader_saves_up_little(self) -> None:
        """After a night without work the disk is not flooded."""
        clock, waited = FakeClock(), []
        pace = Pace(1_000, waited.append, clock)
        clock.advance_s(9 * HOUR_S)

        pace(int(1_000 * PACE_BURST_S))
        assert [] == waited
        pace(500)

        assert [0.5] == waited

    def test_no_rate_is_no_wait(self) -> None:
        """Zero means as fast as the disk goes."""
        waited: list[float] = []

        Pace(0, waited.append, FakeClock())(10**12)

        assert [] == waited
