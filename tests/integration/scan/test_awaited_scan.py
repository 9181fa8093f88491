"""Scans that a caller waits for: their pace, their places and the line in front of them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.scan.container_scan import StoreScanDeps, VerdictBreaker
from agent.scan.interactive_scan import SCANS_MAX, WAITING_MAX, InteractiveScans
from agent.scan.throttle import ScanPace
from agent.services.service_protocols import ScanMode
from merkle.replica import ContainerId
from scanner.scan_rate_control import MIB, PaceLimits
from suture.errors import Code, UnavailableError
from tests.support.clock import FakeClock
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, opened

OTHER = ContainerId(2)
WAIT_S = 30.0


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store with containers 1 and 2, closed and whole."""
    for result in opened(tmp_path / "volume"):
        result.create(OTHER, blocks=1)
        yield result


class TestRequestedScans:
    """Scans that an operator asks for."""

    @pytest.fixture
    def requested(self, replica: StoredReplica) -> "Requested":
        """Return what scans on demand, at a pace of a megabyte a second, and a queue of one."""
        return Requested(replica)

    def test_clients_go_first_while_somebody_waits_for_a_scan(self, requested: "Requested") -> None:
        """A requested scan is paced by the closed loop of its volume, like a background scan."""
        *_, last = requested.scans.run(CONTAINER, lambda: False)

        assert last.commit is not None
        assert [requested.volume_id] == requested.paced
        assert requested.waited_s > 0

    def test_at_full_speed_nothing_is_waited_for(self, requested: "Requested") -> None:
        """The scan uses the whole speed of the disk, and the result is the same."""
        *_, last = requested.scans.run(CONTAINER, lambda: False, ScanMode.FULL_SPEED)

        assert last.commit is not None
        assert ([], 0.0) == (requested.paced, requested.waited_s)

    def test_a_scan_in_line_is_told_at_once(self, requested: "Requested") -> None:
        """The only step reports it, and nothing was read yet. A full queue refuses."""
        (step,) = requested.scans.run(CONTAINER, lambda: False, ScanMode.QUEUE)

        assert (True, 0, None) == (step.is_queued, step.bytes_read, step.commit)
        assert [CONTAINER] == requested.queued
        with pytest.raises(UnavailableError) as refusal:
            list(requested.scans.run(OTHER, lambda: False, ScanMode.QUEUE))
        assert Code.BUSY == refusal.value.code

    def test_scan_waits_in_line_until_another_ends(
        self, replica: StoredReplica, requested: "Requested"
    ) -> None:
        """Places are for four; the fifth is not refused, and its steps say why nothing is read."""
        container_ids = [ContainerId(10 + number) for number in range(SCANS_MAX)]
        for container_id in container_ids:
            replica.create(container_id, blocks=1)
        running = [requested.scans.run(each, lambda: False) for each in container_ids]
        with requested.slow():
            for scan in running:
                assert not next(scan).is_waiting
            fifth = requested.scans.run(CONTAINER, lambda: False)
            waiting = [next(fifth), next(fifth)]
        *_, last = running.pop()
        *_, fifth_last = fifth
        for scan in running:
            scan.close()

        assert [(True, 0)] * 2 == [(step.is_waiting, step.bytes_read) for step in waiting]
        assert None not in (last.commit, fifth_last.commit)

    def test_line_of_waiting_scans_is_bounded_and_left_when_callers_go(
        self, requested: "Requested"
    ) -> None:
        """Each caller that waits holds a thread of the server."""
        with requested.slow():
            running = [requested.scans.run(CONTAINER, lambda: False) for _ in range(SCANS_MAX)]
            waiting = [requested.scans.run(CONTAINER, lambda: False) for _ in range(WAITING_MAX)]
            for scan in (*running, *waiting):
                next(scan)
            one_more = requested.scans.run(CONTAINER, lambda: False)

            with pytest.raises(UnavailableError, match=f"{WAITING_MAX} are waiting") as refusal:
                next(one_more)
            waiting.pop().close()
            in_its_place = requested.scans.run(CONTAINER, lambda: False)
            assert next(in_its_place).is_waiting
        for scan in (in_its_place, *waiting, *running):
            scan.close()

        assert Code.BUSY == refusal.value.code

    @pytest.mark.parametrize("who", ["caller", "agent"])
    def test_wait_in_line_ends_with_its_caller_and_with_the_agent(
        self, requested: "Requested", who: str
    ) -> None:
        """No queue place is held for a caller that has gone."""
        has_gone = threading.Event()
        with requested.slow():
            running = [requested.scans.run(CONTAINER, lambda: False) for _ in range(SCANS_MAX)]
            for scan in running:
                next(scan)
            waiting = requested.scans.run(CONTAINER, has_gone.is_set)
            assert next(waiting).is_waiting
            has_gone.set() if who == "caller" else requested.scans.stop()
            with pytest.raises(UnavailableError) as ended:
                list(waiting)
        for scan in running:
            scan.close()

        assert Code.CANCELLED == ended.value.code

    def test_a_caller_who_leaves_ends_a_wait_for_clients(self, requested: "Requested") -> None:
        """The scan ends at any pace, and nothing of it is kept."""
        with pytest.raises(UnavailableError, match="stopped"):
            list(requested.scans.run(CONTAINER, lambda: requested.waited_s > 0))


class Requested:
    """Requested scans whose time passes only while they wait for clients."""

    def __init__(self, replica: StoredReplica) -> None:
        self.clock = FakeClock()
        self.volume_id = replica.store.volume_id(CONTAINER)
        self.paced: list[str] = []
        self.queued: list[ContainerId] = []
        self.waited_s = 0.0
        self.is_open = threading.Event()
        self.is_open.set()
        tools = StoreScanDeps(
            store=replica.store,
            leases=replica.leases,
            guard=VerdictBreaker(clock=self.clock),
            clock=self.clock,
        )
        self.scans = InteractiveScans(tools, pace=self.pace, queue=self.queue)

    def pace(self, volume_id: str) -> ScanPace:
        """Return a pace far below what the disk gives."""
        self.paced.append(volume_id)
        return ScanPace(PaceLimits(fixed_bytes_per_s=MIB), self.wait, clock=self.clock)

    def wait(self, seconds: float) -> bool:
        """Let the time pass at once, outside of `slow`."""
        self.is_open.wait(WAIT_S)
        self.waited_s += seconds
        self.clock.advance_s(seconds)
        return False

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Let scans that give way to clients stand still until the end of the block."""
        self.is_open.clear()
        try:
            yield
        finally:
            self.is_open.set()

    def queue(self, container_id: ContainerId) -> bool:
        """Take one, and no more."""
        self.queued.append(container_id)
        return len(self.queued) == 1
