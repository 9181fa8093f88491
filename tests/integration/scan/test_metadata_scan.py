"""The quick look: what is missing or foreign beside the data is seen, and scanned, not judged."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.scan import metadata_scan
from agent.scan.metadata_scan import REPLICAS_PER_STEP, MetadataScan
from agent.store.files.layout import ReplicaPaths
from agent.store.replica.quick_check import quick_check
from merkle.replica import ContainerId, ReplicaState
from suture.runtime.loop import Busy, RetryAfter
from tests.support.clock import FakeClock
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, opened

OPEN = ContainerId(2)


class Asked:
    """Keeps what was asked for."""

    def __init__(self) -> None:
        self.scans: list[tuple[ContainerId, str]] = []
        self.checks: list[str] = []

    def request(self, container_id: ContainerId, *, reason: str, is_hint: bool = False) -> bool:
        """Keep a request."""
        assert is_hint
        self.scans.append((container_id, reason))
        return True

    def check(self, volume_id: str, _reason: str) -> None:
        """Keep a volume."""
        self.checks.append(volume_id)


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store with a closed and an open container."""
    for result in opened(tmp_path / "volume"):
        result.store.create_container(OPEN)
        yield result


@pytest.fixture
def asked() -> Asked:
    """Return an empty list."""
    return Asked()


@pytest.fixture
def worker(replica: StoredReplica, asked: Asked) -> MetadataScan:
    """Return the worker over the store."""
    return MetadataScan(replica.store, asked, FakeClock(), asked.check)


def test_whole_replicas_are_passed_over(worker: MetadataScan, asked: Asked) -> None:
    """Whole replicas are passed over, and the next round is three hours away."""
    assert RetryAfter(10_800.0) == worker.step()

    assert ([], [], 0) == (asked.scans, asked.checks, worker.fault_count)
    assert worker.scanned_at_ms


DAMAGE: dict[str, tuple[Callable[[StoredReplica], object], str]] = {
    "no chunks": (
        lambda it: shutil.rmtree(it.store.paths(CONTAINER).chunks),
        "chunks: nothing instead of a directory",
    ),
    "no replica": (
        lambda it: shutil.rmtree(it.store.paths(CONTAINER).root),
        "1: nothing instead of a directory",
    ),
    "no descriptor": (
        lambda it: it.store.paths(CONTAINER).descriptor.unlink(),
        "1.container does not exist",
    ),
    "torn descriptor": (
        lambda it: it.store.paths(CONTAINER).descriptor.write_bytes(b"containerID: 1"),
        "descriptor",
    ),
    "no tree": (lambda it: it.store.paths(CONTAINER).tree.unlink(), "1.tree does not exist"),
    "a foreign tree": (
        lambda it: it.store.paths(CONTAINER).tree.write_bytes(b"x" * 64),
        "1.tree does not begin as a tree",
    ),
    "another's tree": (
        lambda it: it.store.paths(CONTAINER).tree.write_bytes(
            it.store.paths(CONTAINER).tree.read_bytes()[:16] + (9).to_bytes(8, "little")
        ),
        "1.tree is of another container",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_suspicious_metadata_requests_a_scan(
    replica: StoredReplica, worker: MetadataScan, asked: Asked, name: str
) -> None:
    """The volume check is requested too. The scan, not the metadata check, decides the replica's
    state.
    """
    harm, words = DAMAGE[name]
    harm(replica)

    worker.step()

    ((container_id, reason),) = asked.scans
    assert CONTAINER == container_id
    assert words in reason
    assert [replica.store.volumes()[0].volume_id] == asked.checks
    assert (1, ReplicaState.CLOSED) == (worker.fault_count, replica.store.replica(CONTAINER).state)


def test_many_replicas_are_many_steps(
    replica: StoredReplica, worker: MetadataScan, asked: Asked
) -> None:
    """The worker shows life on its way."""
    for number in range(3, REPLICAS_PER_STEP + 10):
        replica.store.create_container(ContainerId(number))

    steps = [worker.step(), worker.step()]

    assert Busy() == steps[0]
    assert isinstance(steps[1], RetryAfter)
    assert [] == asked.scans


def test_a_replica_deleted_meanwhile_is_no_fault(
    replica: StoredReplica, worker: MetadataScan, asked: Asked
) -> None:
    """The replica leaves the store before it leaves the list."""
    for number in range(3, REPLICAS_PER_STEP + 10):
        replica.store.create_container(ContainerId(number))
    worker.step()
    for number in range(REPLICAS_PER_STEP, REPLICAS_PER_STEP + 10):
        replica.store.delete_container(ContainerId(number), force=True)

    worker.step()

    assert ([], 0) == (asked.scans, worker.fault_count)


def test_a_replica_that_is_being_closed_is_looked_at_another_time(
    replica: StoredReplica,
    worker: MetadataScan,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state seen may be half of the agent's own change."""

    def closed_meanwhile(
        paths: ReplicaPaths, container_id: ContainerId, *, has_tree: bool
    ) -> object:
        if container_id == OPEN and replica.store.replica(OPEN).state is ReplicaState.OPEN:
            replica.store.close_container(OPEN, force=True)
            paths.descriptor.unlink()
        return quick_check(paths, container_id, has_tree=has_tree)

    monkeypatch.setattr(metadata_scan, "quick_check", closed_meanwhile)

    worker.step()
    assert ([], []) == (asked.scans, asked.checks)
    worker.step()

    assert [OPEN] == [container_id for container_id, _ in asked.scans]
