"""A failure that nobody can name is no verdict; one that stays for hours is."""

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from merkle.replica import ReplicaState
from scanner.finding import DamageFault, ScanFinding, Verdict
from scanner.unreadable_verdict import SPAN_MS_MIN, TRIES_MIN
from suture.errors import VolumeFailed
from tests.support.clock import FakeClock
from tests.support.storage.stored_replica import CONTAINER, StoredReplica

PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
LASTING = (errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENAMETOOLONG, errno.EOVERFLOW)
Aged = tuple[StoredReplica, FakeClock]


@pytest.fixture
def aged(tmp_path: Path) -> Iterator[Aged]:
    """A closed replica, and the clock that its store goes by."""
    clock = FakeClock(1_700_000_000_000)
    replica = StoredReplica(tmp_path / "volume")
    replica.create()
    replica.options = replace(replica.options, now_ms=clock.now_ms)
    restart(replica)
    yield replica, clock
    replica.close()


def restart(replica: StoredReplica) -> None:
    """Stop the agent and start it again."""
    replica.store.close()
    replica.reopen()


@contextmanager
def failing(code: int, *names: str, scandir: bool = False) -> Iterator[None]:
    """Let files and directories of these names refuse to be opened, as the kernel does."""
    real_open, real_scandir = os.open, os.scandir

    def opening(path: Any, *rest: Any, **options: Any) -> int:
        if Path(path).name in names and not scandir:
            raise OSError(code, os.strerror(code), str(path))
        return real_open(path, *rest, **options)

    def listing(path: Any = ".") -> Any:
        if scandir and isinstance(path, int) and stat.S_ISDIR(os.fstat(path).st_mode):
            raise OSError(code, os.strerror(code))
        return real_scandir(path)

    os.open, os.scandir = cast(Callable[..., int], opening), listing  # type: ignore[assignment]
    try:
        yield
    finally:
        os.open, os.scandir = real_open, real_scandir


def scans(replica: StoredReplica, clock: FakeClock, count: int, *, span_ms: int) -> None:
    """Scan some times over a time, with a restart after each."""
    for number in range(count):
        with suppress(VolumeFailed):
            assert not replica.scan().committed
        assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state
        if number < count - 1:
            clock.advance_s(span_ms / 1000 / (count - 1))
        restart(replica)


@contextmanager
def wavering(block_id: int) -> Iterator[None]:
    """Let each read of a block's first bytes give others, as a bad controller does."""
    real, reads = os.preadv, itertools.count(1)

    def reading(fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        count = real(fd, buffers, offset, flags)
        if offset == 0 and Path(f"/proc/self/fd/{fd}").readlink().name == f"{block_id}.block":
            memoryview(buffers[0])[:8] = next(reads).to_bytes(8)
        return count

    os.preadv = cast(Callable[..., int], reading)
    try:
        yield
    finally:
        os.preadv = real


def facts(findings: list[ScanFinding]) -> set[tuple[Verdict, DamageFault, int]]:
    """Return what was found."""
    return {(item.verdict, item.fault, item.block_id) for item in findings}


@pytest.mark.parametrize("code", LASTING)
def test_block_unreadable_for_an_hour_is_reported_unreadable(aged: Aged, code: int) -> None:
    """The finding names the block, and the replica is UNHEALTHY, also if the agent was restarted
    meanwhile.
    """
    replica, clock = aged
    with failing(code, "2.block"):
        scans(replica, clock, TRIES_MIN, span_ms=SPAN_MS_MIN)

        report = replica.scan()

    assert report.committed
    assert {(Verdict.UNREADABLE, DamageFault.CHUNK_UNREADABLE, 2)} == facts(
        replica.store.findings(CONTAINER)
    )
    assert errno.errorcode[code] in report.findings[0].evidence
    assert ReplicaState.UNHEALTHY is replica.store.replica(CONTAINER).state


@pytest.mark.parametrize("code", PASSING)
def test_a_host_that_is_short_of_something_condemns_nothing(aged: Aged, code: int) -> None:
    """A shortage condemns nothing, however often or long it occurs."""
    replica, clock = aged
    with failing(code, "2.block"):
        scans(replica, clock, 3 * TRIES_MIN, span_ms=100 * SPAN_MS_MIN)

        assert not replica.scan().committed
    with failing(errno.EACCES, "2.block"):  # of which it was the first time
        assert not replica.scan().committed

    assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state


@pytest.mark.parametrize(
    ("count", "span_ms"), [(TRIES_MIN - 1, 2 * SPAN_MS_MIN), (TRIES_MIN + 5, SPAN_MS_MIN - 60_000)]
)
def test_too_few_tries_or_too_short_a_time_are_no_verdict(
    aged: Aged, count: int, span_ms: int
) -> None:
    """
    Many tries within minutes are one trouble, and so are two within days.
    """
    replica, clock = aged
    with failing(errno.EACCES, "2.block"):
        scans(replica, clock, count, span_ms=span_ms)

        assert not replica.scan().committed

    assert [] == replica.store.findings(CONTAINER)


def test_a_chunk_of_which_no_reads_agree_for_an_hour_is_unreadable(aged: Aged) -> None:
    """
    Such a chunk is suspect at first, and nothing is marked; after tries over a time it is damage
    that a peer's copy mends, whatever was restarted meanwhile. A medium that reads well ends it.
    """
    replica, clock = aged
    with wavering(2):
        for _ in range(TRIES_MIN):
            assert {(Verdict.SUSPECT_HOST, DamageFault.CHUNK_CHECKSUM, 2)} == facts(
                list(replica.scan().findings)
            )
            assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state
            clock.advance_s(SPAN_MS_MIN / 1000 / (TRIES_MIN - 1))
            restart(replica)

        report = replica.scan()

    assert {(Verdict.UNREADABLE, DamageFault.CHUNK_UNREADABLE, 2)} == facts(list(report.findings))
    assert "no 3 in a row agree, as in scans before" in report.findings[0].evidence
    assert ReplicaState.UNHEALTHY is report.commit.state_after
    assert 1 == replica.store.replica(CONTAINER).finding_count
    assert ReplicaState.CLOSED is replica.scan().commit.state_after


@pytest.mark.parametrize(
    ("count", "span_ms"), [(TRIES_MIN - 1, 2 * SPAN_MS_MIN), (TRIES_MIN + 2, SPAN_MS_MIN - 60_000)]
)
def test_reads_that_do_not_agree_for_a_while_condemn_nothing(
    aged: Aged, count: int, span_ms: int
) -> None:
    """
    Too few tries, or all within minutes, say nothing about the medium.
    """
    replica, clock = aged
    with wavering(2):
        for _ in range(count):
            replica.scan()
            clock.advance_s(span_ms / 1000 / (count - 1) if count > 1 else 0)

        replica.scan()

    assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state


def test_a_scan_that_reads_all_ends_the_doubt(aged: Aged) -> None:
    """
    The next trouble begins at one.
    """
    replica, clock = aged
    with failing(errno.EACCES, "2.block"):
        scans(replica, clock, TRIES_MIN, span_ms=SPAN_MS_MIN)
    assert replica.scan().committed
    with failing(errno.EACCES, "2.block"):
        assert not replica.scan().committed
    assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state


def test_a_replica_that_can_be_read_again_is_healthy_again(aged: Aged) -> None:
    """UNREADABLE is the state of the medium, and a full successful read ends it."""
    replica, clock = aged
    with failing(errno.EACCES, "2.block"):
        scans(replica, clock, TRIES_MIN, span_ms=SPAN_MS_MIN)
        assert ReplicaState.UNHEALTHY is replica.scan().commit.state_after

    assert ReplicaState.CLOSED is replica.scan().commit.state_after


@pytest.mark.parametrize(
    ("names", "scandir", "fault"),
    [
        (("chunks",), False, DamageFault.CHUNKS_DIRECTORY_MISSING),
        ((), True, DamageFault.CHUNKS_DIRECTORY_MISSING),
        (("1.container",), False, DamageFault.DESCRIPTOR_DAMAGED),
    ],
    ids=["directory", "listing", "descriptor"],
)
def test_directory_or_descriptor_unreadable_for_long_is_a_finding(
    aged: Aged, names: tuple[str, ...], fault: DamageFault, *, scandir: bool
) -> None:
    """The directory cannot be opened or listed, or the descriptor cannot be read."""
    replica, clock = aged
    with failing(errno.EACCES, *names, scandir=scandir):
        scans(replica, clock, TRIES_MIN, span_ms=SPAN_MS_MIN)

        replica.scan()

    assert (Verdict.UNREADABLE, fault, -1) in facts(replica.store.findings(CONTAINER))
    assert ReplicaState.UNHEALTHY is replica.store.replica(CONTAINER).state


def test_damage_is_recorded_though_no_tree_can_be_written(aged: Aged) -> None:
    """
    The directory of trees is as unreadable as the block: the index has the finding all the same.
    """
    replica, clock = aged
    with failing(errno.EACCES, "2.block"):
        scans(replica, clock, TRIES_MIN, span_ms=SPAN_MS_MIN)
    with failing(errno.EACCES, "2.block", "1.tree.tmp", "1.container.tmp"):
        replica.scan()

    assert ReplicaState.UNHEALTHY is replica.store.replica(CONTAINER).state
    restart(replica)
    assert ReplicaState.UNHEALTHY is replica.store.replica(CONTAINER).state
