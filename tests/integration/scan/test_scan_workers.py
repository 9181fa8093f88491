"""Scans as the agent runs them: requests, doubts, and changes under way."""

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.scan.container_scan import StoreScanDeps, VerdictBreaker, scan_container
from agent.scan.ondemand import RETRIES_MAX, OnDemandScans
from merkle.replica import BlockId, ContainerId, ReplicaState
from scanner.breaker import Breaker, BreakerLimits
from scanner.finding import Verdict
from scanner.scan_outcome import ScanOutcome
from suture.errors import Code, RefusedError, UnavailableError
from suture.runtime.loop import Busy, Idle, ProgressMarker, RetryAfter, Step
from tests.support.clock import FakeClock
from tests.support.heard import logged
from tests.support.leases import is_held
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.replica_reader import MemoryReader, MemoryReplica, scan
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, opened

OTHER = ContainerId(2)
THIRD = ContainerId(3)
WAIT_S = 30.0


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store with containers 1, 2 and 3, closed and whole."""
    for result in opened(tmp_path / "volume"):
        result.create(OTHER, blocks=1)
        result.create(THIRD, blocks=1)
        yield result


def tools(
    replica: StoredReplica, clock: FakeClock, guard: VerdictBreaker | None = None
) -> StoreScanDeps:
    """Return the tools of scans that live in the test's time."""
    return StoreScanDeps(
        store=replica.store,
        leases=replica.leases,
        guard=guard or VerdictBreaker(clock=clock),
        clock=clock,
    )


class TestMeanwhile:
    """What happens between the begin of a scan and its commit."""

    def test_a_delete_during_the_scan_wins(self, replica: StoredReplica) -> None:
        """The old tree is not put back: the scan runs again and sees the tombstone."""
        block_id = BlockId(2)
        deletes = iter([lambda: remove_blocks(replica.store, CONTAINER, [block_id])])

        report = scan_container(replica.tools, CONTAINER, progress=lambda _: next(deletes, int)())

        tree = replica.store.view(CONTAINER).tree()
        assert report.committed
        assert (1, 2) == (tree.tombstone_count, tree.block_count)
        assert [] == replica.store.findings(CONTAINER)

    def test_a_replica_that_changes_all_the_time_is_left_for_later(
        self, replica: StoredReplica
    ) -> None:
        """The attempts are bounded. Then the scan gives up and reports the reason."""
        reads = [0]

        def meddle(_: int) -> None:
            reads[0] += 1
            if reads[0] in {1, 3}:  # the first read of each attempt: two blocks are left
                remove_blocks(replica.store, CONTAINER, [BlockId(3 if reads[0] == 1 else 2)])

        report = scan_container(replica.tools, CONTAINER, progress=meddle)

        assert (False, "changed") == (report.committed, report.tripped_reason)
        assert 2 == replica.store.view(CONTAINER).tree().tombstone_count

    def test_a_deleted_container_is_refused(self, replica: StoredReplica) -> None:
        """The error names the container."""
        replica.store.delete_container(CONTAINER, force=True)

        with pytest.raises(RefusedError, match="no container 1"):
            replica.scan()

    def test_a_container_deleted_while_it_is_read_ends_the_scan(
        self, replica: StoredReplica
    ) -> None:
        """Its files vanish under the scan: no finding, no crash, a clear refusal."""
        deletes = iter([lambda: replica.store.delete_container(CONTAINER, force=True)])

        with pytest.raises(RefusedError, match="no container 1"):
            scan_container(replica.tools, CONTAINER, progress=lambda _: next(deletes, int)())

        assert [] == replica.store.findings()

    def test_a_scan_that_is_stopped_tells_the_damage_that_it_found(
        self, replica: StoredReplica
    ) -> None:
        """The damage is marked and counted at once. Unread blocks get no verdict, and no tree is
        committed.
        """
        replica.flip(1, 5)
        replica.flip(3, 5)
        before = replica.store.replica(CONTAINER)
        reads: list[int] = []

        report = scan_container(
            replica.tools, CONTAINER, progress=reads.append, stop=lambda: len(reads) > 2
        )

        after = replica.store.replica(CONTAINER)
        assert (False, "stopped") == (report.committed, report.tripped_reason)
        assert [1] == [finding.block_id for finding in replica.store.findings(CONTAINER)]
        assert (ReplicaState.UNHEALTHY, 1) == (after.state, after.finding_count)
        assert (before.tree, before.data_scan_at_ms) == (after.tree, after.data_scan_at_ms)

    def test_a_stopped_scan_leaves_everything_as_it_was(self, replica: StoredReplica) -> None:
        """A stopped scan keeps neither a tree nor a state."""
        replica.flip(1, 5)
        before = replica.store.replica(CONTAINER)

        report = scan_container(replica.tools, CONTAINER, stop=lambda: True)

        assert (False, "stopped") == (report.committed, report.tripped_reason)
        assert before == replica.store.replica(CONTAINER)

    def test_the_lease_is_free_while_a_scan_reads(self, replica: StoredReplica) -> None:
        """Writers and repairs never wait for the length of a scan."""
        held: list[bool] = []

        scan_container(
            replica.tools,
            CONTAINER,
            progress=lambda _: held.append(is_held(replica.leases, CONTAINER)),
        )

        assert {False} == set(held)

    def test_a_busy_container_is_not_scanned(self, replica: StoredReplica) -> None:
        """The lease holder may be writing."""
        hasty = dataclasses.replace(replica.tools, lease_wait_s=0.01)
        refused: list[Code] = []

        def scan() -> None:
            try:
                scan_container(hasty, CONTAINER)
            except UnavailableError as error:
                refused.append(error.code)

        with replica.leases.hold(CONTAINER):
            thread = threading.Thread(target=scan)
            thread.start()
            thread.join(30)

        assert [Code.BUSY] == refused

    def test_lease_holder_may_scan(self, replica: StoredReplica) -> None:
        """A reconcile ends with a scan before it releases its lease."""
        with replica.leases.hold(CONTAINER):
            report = scan_container(replica.tools, CONTAINER, holds_lease=True)

        assert report.committed


class TestBreaker:
    def test_mass_damage_is_held_back_and_nothing_is_marked(self, replica: StoredReplica) -> None:
        """If too much looks bad at once, replicas keep their state."""
        clock = FakeClock()
        limits = BreakerLimits(damaged_max=2)
        guard = VerdictBreaker(Breaker(limits), clock)
        held = tools(replica, clock, guard)
        damaged = replica.scan()
        replica.flip(1, 5)
        outcome_volume = iter(["volume-a", "volume-b"])
        for container_id in (OTHER, THIRD):
            guard.record_scan(next(outcome_volume), container_id, damaged_outcome())

        report = scan_container(held, CONTAINER)

        assert damaged.committed
        assert not report.committed
        assert report.tripped_reason.startswith("breaker: 3 of 3 replicas on ")
        assert [Verdict.CORRUPT] == [item.verdict for item in report.findings]
        assert ReplicaState.CLOSED == replica.store.replica(CONTAINER).state
        assert [] == replica.store.findings(CONTAINER)

    def test_clean_scans_are_committed_all_the_same(self, replica: StoredReplica) -> None:
        """Doubt about damage is no doubt about health."""
        clock = FakeClock()
        guard = VerdictBreaker(Breaker(BreakerLimits(damaged_max=2)), clock)
        for number, container_id in enumerate((OTHER, THIRD)):
            guard.record_scan(f"volume-{number}", container_id, damaged_outcome())

        assert scan_container(tools(replica, clock, guard), CONTAINER).committed


def damaged_outcome() -> ScanOutcome:
    """Return the outcome of a scan that found one corrupt chunk."""
    medium = MemoryReplica()
    medium.put(1, b"x" * 100)
    medium.flip(1, 0)
    return scan(MemoryReader(medium))


class TestOnDemandScans:
    def scans(self, replica: StoredReplica, clock: FakeClock, **changes: int) -> OnDemandScans:
        """Return an empty queue."""
        return OnDemandScans(
            tools(replica, clock),
            pace=lambda _: None,
            stop=threading.Event(),
            pulse=ProgressMarker(clock),
            **changes,
        )

    def test_a_request_wakes_its_worker_and_is_scanned(self, replica: StoredReplica) -> None:
        """Asked, woken, scanned, idle."""
        scans, woken = self.scans(replica, FakeClock()), threading.Event()
        scans.attach(woken.set)

        assert scans.request(CONTAINER, reason="test")
        assert woken.is_set()
        assert [Busy(), Idle()] == [scans.step(), scans.step()]
        assert replica.store.replica(CONTAINER).data_scan_at_ms

    def test_requests_for_one_container_are_one_scan(self, replica: StoredReplica) -> None:
        """A hundred events are one reason to look."""
        scans = self.scans(replica, FakeClock())

        for _ in range(100):
            assert scans.request(CONTAINER, reason="test")

        assert 1 == scans.waiting_count()

    def test_the_queue_is_bounded(self, replica: StoredReplica) -> None:
        """Overload refuses."""
        scans = self.scans(replica, FakeClock(), requests_max=2)

        answers = [scans.request(ContainerId(number), reason="test") for number in (1, 2, 3)]

        assert [True, True, False] == answers

    def test_hints_are_spaced_out(self, replica: StoredReplica) -> None:
        """A writer that writes all day causes one scan a minute. An operator's request is not
        delayed.
        """
        clock = FakeClock()
        scans = self.scans(replica, clock)
        scans.request(CONTAINER, reason="test", is_hint=True)
        assert Busy() == scans.step()

        scans.request(CONTAINER, reason="test", is_hint=True)
        assert RetryAfter(60.0) == scans.step()

        scans.request(CONTAINER, reason="operator")
        assert Busy() == scans.step()

    def test_some_hints_are_spaced_out_more(self, replica: StoredReplica) -> None:
        """A bad sector that clients read all day is looked at by the quarter of an hour."""
        clock = FakeClock()
        scans = self.scans(replica, clock)
        scans.request(CONTAINER, reason="test", is_failure=True)
        assert Busy() == scans.step()
        clock.advance_s(300)

        scans.request(CONTAINER, reason="test", is_failure=True)

        assert RetryAfter(600.0) == scans.step()

    def test_requested_scans_run_before_failures_and_failures_before_hints(
        self, replica: StoredReplica
    ) -> None:
        """A burst of changed files delays no request, and each container waits once."""
        clock = FakeClock()
        scans = self.scans(replica, clock)
        scans.request(CONTAINER, reason="changed", is_hint=True)
        scans.request(OTHER, reason="failed", is_failure=True)
        scans.request(THIRD, reason="changed", is_hint=True)
        scans.request(THIRD, reason="asked")

        scanned = []
        for _ in range(3):
            before = {
                facts.container_id: facts.data_scan_at_ms for facts in replica.store.replicas()
            }
            assert Busy() == scans.step()
            scanned += [
                facts.container_id
                for facts in replica.store.replicas()
                if facts.data_scan_at_ms != before[facts.container_id]
            ]

        assert [THIRD, OTHER, CONTAINER] == scanned
        assert Idle() == scans.step()

    def test_a_spaced_hint_is_scanned_in_the_end(self, replica: StoredReplica) -> None:
        """Waiting is not forgetting."""
        clock = FakeClock()
        scans = self.scans(replica, clock)
        scans.request(CONTAINER, reason="test", is_hint=True)
        scans.step()
        scans.request(CONTAINER, reason="test", is_hint=True)

        clock.advance_s(60)
        with logged() as events:
            assert Busy() == scans.step()

        assert ["scan_requested"] == [e["event"] for e in events if e["event"] == "scan_requested"]

    def test_a_container_that_went_away_is_forgotten(self, replica: StoredReplica) -> None:
        """A request for what was deleted meanwhile is no error."""
        scans = self.scans(replica, FakeClock())
        scans.request(ContainerId(99), reason="test")

        assert [Busy(), Idle()] == [scans.step(), scans.step()]

    def test_a_scan_that_cannot_begin_is_tried_again_but_not_for_ever(
        self, replica: StoredReplica
    ) -> None:
        """Bounded retries, with a pause between them."""
        clock = FakeClock()
        scans = OnDemandScans(
            dataclasses.replace(tools(replica, clock), lease_wait_s=0.0),
            pace=lambda _: None,
            stop=threading.Event(),
            pulse=ProgressMarker(clock),
        )
        scans.request(CONTAINER, reason="test")

        with replica.leases.hold(CONTAINER), ThreadPoolExecutor(1) as other:
            steps = other.submit(steps_of, scans, clock).result()

        assert RETRIES_MAX + 1 == steps.count(Busy())
        assert 0 == replica.store.replica(CONTAINER).data_scan_at_ms

    @pytest.mark.parametrize("is_over", [True, False])
    def test_a_verdict_that_is_held_is_asked_for_once_more_when_it_may_be_believed(
        self, replica: StoredReplica, is_over: bool
    ) -> None:
        """Each earlier scan would read everything for nothing, and extend the suspicion against
        this host.
        """
        clock = FakeClock()
        guard = VerdictBreaker(Breaker(BreakerLimits(window_s=600.0, damaged_max=2)), clock)
        for number, container_id in enumerate((OTHER, THIRD)):
            guard.record_scan(f"volume-{number}", container_id, damaged_outcome())
        replica.flip(1, 5)
        read: list[int] = []
        scans = OnDemandScans(
            tools(replica, clock, guard),
            pace=read.append,
            stop=threading.Event(),
            pulse=ProgressMarker(clock),
        )
        scans.request(CONTAINER, reason="test")
        scans.step()
        before = sum(read)
        clock.advance_s(599.0)
        assert isinstance(scans.step(), RetryAfter)
        assert before == sum(read)
        if not is_over:
            for number, container_id in enumerate((OTHER, THIRD)):
                guard.record_scan(f"volume-{number}", container_id, damaged_outcome())

        steps_of(scans, clock)

        assert before < sum(read) <= 2 * before
        expected = ReplicaState.UNHEALTHY if is_over else ReplicaState.CLOSED
        assert expected is replica.store.replica(CONTAINER).state


def steps_of(scans: OnDemandScans, clock: FakeClock) -> list[Step]:
    """Return what the worker does until nothing waits any more."""
    steps: list[Step] = []
    while not isinstance(step := scans.step(), Idle):
        steps.append(step)
        clock.advance_s(step.delay_s if isinstance(step, RetryAfter) else 0)
    return steps
