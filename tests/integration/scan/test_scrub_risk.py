"""What the SCM says of last copies reaches the order in which a host reads."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.config.options import ScanConfig
from agent.scan.container_scan import StoreScanDeps, VerdictBreaker
from agent.scan.scan_manager import ScanManager
from merkle.replica import ContainerId
from tests.support.clock import FakeClock
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, opened

OTHER, UNKNOWN = ContainerId(2), 999
NOW_MS = 1_790_010_000_000  # fixed: slots lie where they lie
INTERVAL_S = 36_000
YEARS_S = 5 * 365 * 86_400.0
CONFIG = ScanConfig(
    data_interval_s=INTERVAL_S,
    start_jitter_s=0,
    promise="warn",
    gap_min_s=0,
    volume_bytes_per_s=2**34,
)  # type: ignore[call-arg]


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store with two closed containers."""
    for result in opened(tmp_path / "volume"):
        result.create(OTHER, blocks=1)
        yield result


class Host:
    """The background scan of a host, driven step by step in the test's time."""

    def __init__(self, replica: StoredReplica) -> None:
        self.clock = FakeClock(NOW_MS)
        replica.options = replace(replica.options, now_ms=self.clock.now_ms)
        replica.close()
        replica.reopen()
        self._store = replica.store
        tools = StoreScanDeps(
            store=replica.store,
            leases=replica.leases,
            guard=VerdictBreaker(clock=self.clock),
            clock=self.clock,
        )
        self.scrub = ScanManager(tools, CONFIG, threading.Event())
        self._loop = next(
            loop for loop in self.scrub.loops() if loop.status().name == self._worker_name()
        )

    def _worker_name(self) -> str:
        return f"scan-{self._store.volumes()[0].volume_id}"

    def read(self) -> set[ContainerId]:
        """Read what is due; return what was read."""
        self.clock.advance_s(60)
        now_ms = self.clock.now_ms()
        while self._loop.run_step() == 0.0:
            self.clock.advance_s(1)
        return {
            facts.container_id
            for facts in self._store.replicas()
            if facts.data_scan_at_ms >= now_ms
        }


def test_a_last_copy_is_read_once_although_it_is_not_due(replica: StoredReplica) -> None:
    """Every heartbeat names it again, and it is read once. Unknown ids are ignored."""
    host = Host(replica)
    assert {CONTAINER, OTHER} == host.read()
    host.clock.advance_s(0.13 * INTERVAL_S)
    due = host.read()

    host.scrub.last_copies([OTHER, UNKNOWN])
    host.scrub.last_copies([OTHER, UNKNOWN])

    assert due == set()
    assert {OTHER} == host.read()
    host.scrub.last_copies([OTHER, UNKNOWN])
    assert set() == host.read()


def test_recently_scanned_last_copy_is_not_scanned_again(replica: StoredReplica) -> None:
    """A restarted agent receives all its last copies again, which is no reason to scan them."""
    host = Host(replica)
    assert {CONTAINER, OTHER} == host.read()

    host.scrub.last_copies([OTHER])

    assert set() == host.read()


def test_a_last_copy_that_was_told_while_the_clock_was_ahead_is_read_once(
    replica: StoredReplica,
) -> None:
    """The container would otherwise be read before all others until that time comes, in years."""
    host = Host(replica)
    assert {CONTAINER, OTHER} == host.read()
    host.clock.set_wall_s(YEARS_S)
    host.scrub.last_copies([OTHER])
    host.clock.set_wall_s(-YEARS_S)

    host.scrub.last_copies([OTHER])

    assert {OTHER} == host.read()
    host.scrub.last_copies([OTHER])
    assert set() == host.read()
