"""The change watch over real inotify: what others do is seen at once, what we do is not."""

import ctypes
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from watchdog.observers import inotify_c
from watchdog.observers.inotify_c import InotifyFD

from agent.scan.change_watch import ChangeWatch
from agent.scan.ondemand import OnDemandScans
from merkle.replica import ContainerId
from suture.runtime.loop import ProgressMarker, RetryAfter
from tests.support.heard import logged
from tests.support.storage.stored_replica import CONTAINER, StoredReplica, opened

WITHIN_S = 10.0  # a second on a machine that does nothing else
SETTLE_S = 0.3  # for what must not happen


class Watched:
    """A store with a running watch, and the requests that it makes."""

    def __init__(self, replica: StoredReplica) -> None:
        self.replica = replica
        self.asked = threading.Event()
        self.scans = OnDemandScans(
            replica.tools, pace=lambda _: None, stop=threading.Event(), pulse=ProgressMarker()
        )
        self.scans.attach(self.asked.set)
        self.watch = ChangeWatch(replica.store, replica.leases, self.scans)
        assert RetryAfter(5.0) == self.watch.step()

    def is_noticed(self) -> bool:
        """Whether a change was followed by a request; forgets it."""
        noticed = self.asked.wait(WITHIN_S)
        self.asked.clear()
        return noticed

    def is_quiet(self) -> bool:
        """Whether nothing was asked for a while."""
        return not self.asked.wait(SETTLE_S)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """Return a watched store with one closed container."""
    for replica in opened(tmp_path / "volume"):
        result = Watched(replica)
        yield result
        result.watch.close()


class TestOthers:
    @pytest.mark.parametrize(
        "meddle",
        [
            pytest.param(lambda path: path.unlink(), id="unlink"),
            pytest.param(lambda path: os.truncate(path, 10), id="truncate"),
            pytest.param(lambda path: path.write_bytes(b"x"), id="write"),
            pytest.param(lambda path: path.rename(path.with_name("aside")), id="rename"),
            pytest.param(lambda path: path.with_name("new").write_bytes(b"x"), id="nothing"),
        ],
    )
    def test_a_change_of_a_block_file_asks_for_a_scan(
        self, watched: Watched, meddle: Callable[[Path], object], request: pytest.FixtureRequest
    ) -> None:
        """Every way to damage a file is seen; a stranger's file is not one."""
        is_damage = "nothing" not in request.node.callspec.id

        meddle(watched.replica.file(1))

        assert is_damage is (watched.is_noticed() if is_damage else not watched.is_quiet())

    def test_a_change_of_a_pack_asks_for_a_scan(self, watched: Watched) -> None:
        """Small blocks may share a file."""
        watched.replica.store.paths(CONTAINER).pack.write_bytes(b"x")

        assert watched.is_noticed()

    def test_the_scan_that_follows_finds_the_damage(self, watched: Watched) -> None:
        """From the write to the finding without anybody asking."""
        watched.replica.flip(2, 7)
        assert watched.is_noticed()

        watched.scans.step()

        assert [2] == [item.block_id for item in watched.replica.store.findings(CONTAINER)]

    def test_a_removed_directory_is_noticed(self, watched: Watched) -> None:
        """Self events of the directory count too."""
        chunks = watched.replica.store.paths(CONTAINER).chunks
        chunks.rename(chunks.with_name("elsewhere"))

        assert watched.is_noticed()


class TestOurselves:
    def test_own_change_under_a_lease_is_ignored(self, watched: Watched) -> None:
        """A repair must not request a scan, which would request a repair.

        Events arrive in order, so a later change of another container shows that this one was seen.
        """
        other = ContainerId(2)
        watched.replica.create(other, blocks=1)
        watched.watch.step()

        with watched.replica.leases.hold(CONTAINER):
            watched.replica.flip(1, 5)
        is_quiet = watched.is_quiet()
        watched.replica.file(1, other).unlink()

        assert is_quiet
        assert watched.is_noticed()

    def test_a_scan_causes_no_scan(self, watched: Watched) -> None:
        """Reading changes nothing."""
        watched.replica.scan()

        assert watched.is_quiet()

    def test_damage_right_after_a_scan_is_not_taken_for_ours(self, watched: Watched) -> None:
        """The scan's leases write no chunks."""
        watched.replica.scan()

        watched.replica.flip(1, 5)

        assert watched.is_noticed()


class TestWhichDirectories:
    def test_an_open_container_is_not_watched_until_it_is_closed(self, watched: Watched) -> None:
        """Clients write there all day."""
        other, store = ContainerId(2), watched.replica.store
        store.create_container(other)
        watched.replica.put(1, 1_000, container_id=other)
        watched.watch.step()
        assert 1 == len(watched.watch.watched)

        store.close_container(other, bcsid=0, force=True)
        watched.watch.step()

        assert 2 == len(watched.watch.watched)
        assert watched.is_quiet()

    def test_a_deleted_container_is_watched_no_more(self, watched: Watched) -> None:
        """Its watch goes with it, and its delete is no news."""
        with watched.replica.leases.hold(CONTAINER):
            watched.replica.store.delete_container(CONTAINER, force=True)

        watched.watch.step()

        assert 0 == len(watched.watch.watched)
        assert watched.is_quiet()


class LimitedInotify(InotifyFD):
    """An inotify whose kernel has no watch left, as with fs.inotify.max_user_watches = 0."""

    def add_callback(self, *_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "inotify watch limit reached")


def forbid(monkeypatch: pytest.MonkeyPatch, *containers: int) -> None:
    """Let the kernel refuse to watch these containers, like directories of another user."""
    allowed = inotify_c.inotify_add_watch

    def add_watch(descriptor: int, path: bytes, mask: int) -> int:
        if any(f"/{container}/".encode() in path for container in containers):
            ctypes.set_errno(errno.EACCES)
            return -1
        return int(allowed(descriptor, path, mask))

    monkeypatch.setattr(inotify_c, "inotify_add_watch", add_watch)


class TestLimits:
    def test_directories_that_may_not_be_read_are_counted_and_the_others_watched(
        self, watched: Watched, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Unreadable directories do not prevent the watch of the others, and are logged once."""
        for number in (2, 3):
            watched.replica.create(ContainerId(number), blocks=1)
        watch = ChangeWatch(watched.replica.store, watched.replica.leases, watched.scans)
        forbid(monkeypatch, 2, 3)

        with logged() as said:
            for _ in range(2):
                watch.step()

        assert [CONTAINER] == list(watch.watched.values())
        assert 2 == watch.unwatched_count
        assert ["change_watch_limited"] == [line["event"] for line in said]
        assert "Permission denied" in said[0]["error"]
        watch.close()

    def test_a_directory_that_comes_back_is_watched_again(self, watched: Watched) -> None:
        """The kernel removes the watch of a deleted directory. The next step adds it again."""
        chunks = watched.replica.store.paths(CONTAINER).chunks
        for path in chunks.iterdir():
            path.unlink()
        chunks.rmdir()
        assert watched.is_noticed()
        deadline_s = time.monotonic() + WITHIN_S
        while watched.watch.watched and time.monotonic() < deadline_s:
            watched.watch.step()

        chunks.mkdir()
        watched.watch.step()
        (chunks / "1.block").write_bytes(b"x")

        assert watched.is_noticed()

    def test_no_watch_left_is_counted_and_harmless(self, watched: Watched) -> None:
        """The hint is lost, and the worker continues."""
        watch = ChangeWatch(
            watched.replica.store,
            watched.replica.leases,
            watched.scans,
            open_inotify=LimitedInotify,
        )

        assert RetryAfter(5.0) == watch.step()

        assert (0, 1) == (len(watch.watched), watch.unwatched_count)
        watch.close()

    def test_exhausted_inotify_is_logged_once_with_the_limit(self, watched: Watched) -> None:
        """The kernel counts instances for each user; other programs may hold all of them."""

        def exhausted() -> InotifyFD:
            raise OSError(errno.EMFILE, "inotify instance limit reached")

        watch = ChangeWatch(
            watched.replica.store, watched.replica.leases, watched.scans, open_inotify=exhausted
        )

        with logged() as said:
            steps = [watch.step() for _ in range(2)]

        assert [RetryAfter(5.0)] * 2 == steps
        assert (0, 1) == (len(watch.watched), watch.unwatched_count)
        assert ["raise fs.inotify.max_user_instances"] == [line["hint"] for line in said]

    def test_an_overflow_is_counted(self, watched: Watched) -> None:
        """The kernel dropped events: the background scan will see what they were about."""
        with logged() as said:
            watched.watch.on_queue_overflow()

        assert [("change_watch_overflowed", 1)] == [
            (line["event"], line["overflow_count"]) for line in said
        ]

    def test_a_dead_inotify_thread_is_replaced(self, watched: Watched) -> None:
        """The change watch does not stop silently."""
        opened_fds: list[InotifyFD] = []

        def open_inotify() -> InotifyFD:
            opened_fds.append(InotifyFD())
            return opened_fds[-1]

        watch = ChangeWatch(
            watched.replica.store, watched.replica.leases, watched.scans, open_inotify=open_inotify
        )
        watched.watch.close()
        watch.step()
        opened_fds[0].stop()
        opened_fds[0].join(WITHIN_S)

        watch.step()
        watched.replica.flip(1, 5)

        assert watched.is_noticed()
        assert 2 == len(opened_fds)
        watch.close()
