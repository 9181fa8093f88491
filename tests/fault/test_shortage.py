"""A host that is short of descriptors, memory or threads: it says nothing of disks and data.

Each call of a store is tried with the n-th file that it opens refused, for every n and each errno
of a shortage: it is refused as BUSY or done, nothing is lost, and later it is done.
"""

import errno
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.scan.volume_check import CheckLimits, VolumeCheckWorker
from agent.store.replica.packs import unpack
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.probe import Probe
from agent.store.volumes.sealed_file import read_sealed, sealed
from merkle.replica import BlockId, ContainerId
from suture.errors import Code, UnavailableError
from suture.runtime.durable import replace_file
from suture.runtime.loop import RetryAfter
from suture.wire.server.descriptors import connections_that_fit, raise_limit
from tests.support.clock import FakeClock
from tests.support.storage.packed import contents, packed_pair
from tests.support.storage.stored_replica import CONTAINER
from tests.support.storage.stores import (
    CHUNK_BYTES,
    CLUSTER,
    check_clean,
    closed_replica,
    content,
    open_store,
)

pytestmark = pytest.mark.fault

ONE = ContainerId(1)
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
OPENS_MAX = 200
PRLIMIT = "/usr/bin/prlimit"  # util-linux
LIMITS = CheckLimits(interval_s=3600, gap_min_s=10, retry_s=60, timeout_s=600)


class Opens:
    """Has the n-th `os.open` of this process fail, and counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = os.open
        self.count = 0
        self.failing = 0
        self.number = errno.EMFILE
        monkeypatch.setattr(os, "open", self._call)

    def fail(self, nth: int, number: int = errno.EMFILE) -> None:
        """Fail the n-th call from now on with this errno; 0: none."""
        self.count, self.failing, self.number = 0, nth, number

    def _call(self, path: object, flags: int, *rest: object, **names: object) -> int:
        self.count += 1
        if self.count == self.failing:
            raise OSError(self.number, os.strerror(self.number), str(path))
        return self._open(path, flags, *rest, **names)  # type: ignore[arg-type]


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> Opens:
    """Return what fails opens."""
    return Opens(monkeypatch)


class Rig:
    """The volume check over one store, in the test's time."""

    def __init__(self, store: ReplicaStore, probe: Callable[[str], Probe] | None = None) -> None:
        self.clock = FakeClock()
        self.failed: list[str] = []
        self.checks = VolumeCheckWorker(
            store,
            clock=self.clock,
            on_failed=lambda volume_id, _: self.failed.append(volume_id),
            limits=LIMITS,
            probe=probe,
        )

    def run(self, seconds: float = 0.0) -> None:
        """Let time pass, and the probes end."""
        self.clock.advance_s(seconds)
        self.checks.step()
        for thread in threading.enumerate():
            if thread.name.startswith("probe-"):
                thread.join(5.0)
        assert isinstance(self.checks.step(), RetryAfter)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ReplicaStore]:
    """Return a store of two volumes with a closed container."""
    opened = open_store(tmp_path, volume_count=2)
    closed_replica(opened)
    yield opened
    opened.close()


class TestVolumeCheck:
    """A probe that lacks something of the host."""

    def test_no_descriptor_for_hours_fences_no_volume(self, store: ReplicaStore) -> None:
        """
        The limit is really reached; once there are descriptors again the check passes.
        """
        rig = Rig(store)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            for _ in range(20):
                rig.run(LIMITS.retry_s)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

        assert [] == rig.failed
        assert not any(facts.failed for facts in store.volumes())
        before = rig.checks.check_count
        rig.run(LIMITS.gap_min_s)
        assert before + 2 == rig.checks.check_count
        assert ["", ""] == [rig.checks.error_of(facts.volume_id) for facts in store.volumes()]

    @pytest.mark.parametrize(
        "error",
        [
            *(OSError(number, os.strerror(number)) for number in SHORTAGES),
            MemoryError(),
            UnavailableError(Code.BUSY, "no readers"),
        ],
        ids=repr,
    )
    def test_a_probe_that_ends_in_a_shortage_is_no_strike(
        self, store: ReplicaStore, error: Exception
    ) -> None:
        """A probe that ends in a shortage is no strike, however often it happens."""

        def probe(_: str) -> Probe:
            raise error

        rig = Rig(store, probe)
        for _ in range(20):
            rig.run(LIMITS.retry_s)

        assert [] == rig.failed

    @pytest.mark.parametrize("number", SHORTAGES)
    def test_every_open_of_a_probe_may_fail(
        self, store: ReplicaStore, opens: Opens, number: int
    ) -> None:
        """
        No errno of a shortage, at no step, is an error of the disk.
        """
        volume_id = store.volumes()[0].volume_id
        opens.fail(0)
        store.volume_set.probe(volume_id)
        assert opens.count

        for nth in range(1, opens.count + 1):
            opens.fail(nth, number)
            found = store.volume_set.probe(volume_id)
            assert ("", False) == (found.error, found.is_final), found

    def test_no_thread_for_a_probe_is_no_disk_that_hangs(
        self, store: ReplicaStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        A disk that hangs is fenced after twice the timeout.
        """

        def start(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        rig = Rig(store)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            for _ in range(20):
                rig.run(LIMITS.timeout_s)
        assert [] == rig.failed

        rig.run(LIMITS.gap_min_s)
        assert ["", ""] == [rig.checks.error_of(facts.volume_id) for facts in store.volumes()]

    def test_an_error_of_the_disk_is_one(self, store: ReplicaStore) -> None:
        """The shortages end, and later disk errors count as before."""

        def probe(_: str) -> Probe:
            raise OSError(errno.EIO, "I/O error")

        rig = Rig(store, probe)
        for _ in range(3):
            rig.run(LIMITS.retry_s)

        assert 2 == len(rig.failed)


def tried(opens: Opens, call: Callable[[], object], number: int) -> Iterator[bool]:
    """Try a call with each open failing in turn; yield whether it was done. Anything but BUSY for
    a refusal fails the test."""
    for nth in range(1, OPENS_MAX):
        opens.fail(nth, number)
        refusal: Code | None = None
        try:
            call()
        except UnavailableError as error:
            refusal = error.code
        finally:
            is_reached = opens.count >= nth
            opens.fail(0)
        assert refusal in {None, Code.BUSY}
        yield refusal is None
        if not is_reached:
            return
    raise AssertionError("the call opens files without end")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_a_start_leaves_no_volume_out(tmp_path: Path, opens: Opens, number: int) -> None:
    """
    A volume that was left out would be out until the next start, and its replicas copied.
    """
    store = open_store(tmp_path, volume_count=2)
    for container_id in (1, 2, 3):
        closed_replica(store, container_id, block_ids=(1,))
    ids = set(store.replica_ids())
    store.close()
    index = tmp_path / "v0" / "hdds" / CLUSTER / "db"
    lost = tmp_path / "lost"
    for is_lost in (False, True):  # with a lost index all is loaded from descriptors and trees
        if is_lost:
            lost.mkdir()
        opened: list[ReplicaStore] = []

        def start(is_lost: bool = is_lost, opened: list[ReplicaStore] = opened) -> None:
            if is_lost:
                shutil.rmtree(index, ignore_errors=True)
            opened.append(open_store(tmp_path, volume_count=2))

        for is_done in tried(opens, start, number):
            if is_done:
                store = opened.pop()
                assert () == store.unloadable()
                assert not [facts for facts in store.volumes() if facts.failed]
                assert ids == set(store.replica_ids())
                if not is_lost:
                    check_clean(store, tmp_path)
                store.close()


def test_repair_without_descriptors_keeps_the_bytes_it_replaces(
    tmp_path: Path, opens: Opens
) -> None:
    """Bytes that cannot be read for lack of a descriptor do not count as lost."""
    store = open_store(tmp_path)
    block = closed_replica(store, block_ids=(1,))[1]
    path = store.paths(ONE).block_file(BlockId(1))
    whole = content((1, 0))
    done_count = 0

    def repair() -> None:
        store.repair(ONE).install_chunk(BlockId(1), block.chunks[0], whole)

    path.write_bytes(b"X" + path.read_bytes()[1:])
    for is_done in tried(opens, repair, errno.EMFILE):
        if is_done:
            assert whole == path.read_bytes()[:CHUNK_BYTES]
            pieces = list((tmp_path / "v0").glob("hdds/*/quarantine/*.bytes"))
            assert b"X" + whole[1:] in [piece.read_bytes() for piece in pieces]
            for piece in pieces:
                piece.unlink()
            path.write_bytes(b"X" + path.read_bytes()[1:])
            done_count += 1
    assert done_count
    store.close()


def test_a_block_in_a_pack_is_copied_out_whole_or_not(tmp_path: Path, opens: Opens) -> None:
    """A page that could not be read for lack of a descriptor is not the end of the block."""
    five = BlockId(5)
    with packed_pair(tmp_path) as pair:
        whole = contents(pair.source)
        volume = pair.target.replica.store.volume_set.places[CONTAINER]
        busy_count = 0
        for is_done in tried(opens, lambda: unpack(volume, CONTAINER, five), errno.EMFILE):
            assert whole == contents(pair.target)
            busy_count += not is_done
            if is_done:
                break
        assert busy_count
        assert (
            whole[five] == pair.target.replica.store.paths(CONTAINER).block_file(five).read_bytes()
        )


def test_a_file_that_proves_itself_is_not_missing_for_want_of_a_descriptor(
    tmp_path: Path, opens: Opens
) -> None:
    """
    The service mode of a volume, its list of volumes and the datanode's state are such files.
    """
    path = tmp_path / "file"
    replace_file(path, sealed({"mode": "RETIRED"}))
    for number in SHORTAGES:
        opens.fail(1, number)
        with pytest.raises(UnavailableError) as refusal:
            read_sealed(path, 100)
        assert Code.BUSY is refusal.value.code

    assert {"mode": "RETIRED"} == read_sealed(path, 100)
    opens.fail(1, errno.EIO)
    assert read_sealed(path, 100) is None
    path.write_bytes(b"{}\n00000000\n")
    assert read_sealed(path, 100) is None


@pytest.mark.parametrize("program", ["agent", "scm"])
def test_a_program_raises_its_soft_limit_at_its_start(tmp_path: Path, program: str) -> None:
    """
    Both are started under a soft limit that a hundred connections would reach.
    """
    (tmp_path / "volume").mkdir()
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[node]\nscm = "127.0.0.1:1"\n[storage]\nvolumes = ["{tmp_path / "volume"}"]\n'
    )
    of_program = {
        "agent": ["-m", "agent.main", f"--config={config}"],
        "scm": ["-m", "scm.main", f"--data={tmp_path / 'data'}", "--listen=127.0.0.1:0"],
    }
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with subprocess.Popen(
        [PRLIMIT, f"--nofile=200:{hard}", sys.executable, *of_program[program]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "waiting_for_scm" in line or '"listening"' in line:
                    break
            soft = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0]
        finally:
            process.kill()

    assert min(hard, 2**20) == soft


def test_the_soft_limit_is_raised_and_connections_fit_it() -> None:
    """An agent that starts under the usual soft limit of 1,024 raises it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits[1] >= 4096
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
        assert raise_limit() == min(limits[1], 2**20)

        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
        assert 512 == connections_that_fit(1_000)
        assert 256 == connections_that_fit(1_000, server_count=2)
        assert 100 == connections_that_fit(100, server_count=2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
