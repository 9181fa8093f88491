"""A host out of file descriptors while it scans: nothing may be called damaged for it."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from suture.errors import Code, UnavailableError
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, opened

pytestmark = pytest.mark.fault


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store with one closed container."""
    yield from opened(tmp_path / "volume")


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """Leave this process exactly `count` file descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 50, limits[1]))
    try:
        while True:
            try:
                taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)


def test_no_descriptor_for_a_block_file_is_no_damage(replica: StoredReplica) -> None:
    """The incumbent once marked replicas UNHEALTHY for it (HDDS-15150): we say why and wait."""
    before = replica.store.replica(CONTAINER)

    with free_descriptors(1):
        report = replica.scan()

    assert (False, "TRANSIENT: EMFILE") == (report.committed, report.tripped_reason)
    assert () == report.findings
    assert before == replica.store.replica(CONTAINER)


def test_no_descriptor_for_the_directory_is_a_busy_host(replica: StoredReplica) -> None:
    """The scan is refused for now; the replica is as it was."""
    with free_descriptors(0), pytest.raises(UnavailableError) as caught:
        replica.scan()

    assert Code.BUSY == caught.value.code
    assert ReplicaState.CLOSED == replica.store.replica(CONTAINER).state


def test_with_descriptors_again_the_scan_goes_on(replica: StoredReplica) -> None:
    """The failure was transient."""
    with free_descriptors(1):
        replica.scan()

    assert replica.scan().committed
