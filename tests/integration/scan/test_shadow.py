"""After an upgrade some of what is read is hashed by other code, too: a version that takes wrong
bytes for right, or right ones for wrong, commits nothing."""

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.scan.container_scan import ScanReport, StoreScanDeps, scan_container
from agent.scan.shadow.hashing import SHADOW_S, ShadowHashing
from agent.scan.shadow.reference_checksums import ReferenceChecksums, ReferenceUnavailable
from agent.store.direct_io import BlockFile
from agent.store.index.rows import moved_on
from agent.store.replica_store import ReplicaStore
from agent.store.verification_log.chain import EntryKind, check, entries
from agent.store.verification_log.log_reader import read_log
from merkle.checksum import window_checksums
from merkle.replica import BlockId, ChecksumType, ChunkInfo, ReplicaState
from scanner import replica_scan
from scanner.chunk_verdict import FirstRead
from suture.wire.v1 import datanode_pb2
from tests.support.clock import FakeClock
from tests.support.faults.refused_calls import SETPRIORITY
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stored_replica import CLUSTER, CONTAINER, DATANODE, StoredReplica, opened

NOW_MS = 1_700_000_000_000


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store with one container, closed and whole."""
    yield from opened(tmp_path / "volume")


@pytest.fixture
def shadow() -> Iterator[ShadowHashing]:
    """Return shadow hashing of all reads, a minute after an upgrade, in its own process."""
    clock = FakeClock()
    made = ShadowHashing(lambda: clock.now_ms() - 60_000, clock, share=1.0)
    yield made
    made.close()


def scanned(replica: StoredReplica, shadow: ShadowHashing | None) -> ScanReport:
    """Scan the container, with or without a shadow."""
    tools: StoreScanDeps = replace(replica.tools, shadow=shadow)
    return scan_container(tools, CONTAINER)


def takes_all_for_right(*_arguments: object) -> None:
    """A hot path that is broken: no chunk differs."""


def takes_all_for_wrong(
    _scan: object, chunk: ChunkInfo, data: memoryview, _whole: int
) -> FirstRead:
    """A hot path that is broken otherwise: every chunk differs."""
    return FirstRead(len(data), bytes(len(chunk.window_checksums)))


class TestScans:
    """A scan beside the former code."""

    def test_scan_commits_if_both_hashers_agree(
        self, replica: StoredReplica, shadow: ShadowHashing
    ) -> None:
        """The replicas are whole and damaged, and every chunk was hashed twice."""
        well = scanned(replica, shadow)
        replica.flip(2, 100)
        damaged = scanned(replica, shadow)

        assert (True, True) == (well.committed, damaged.committed)
        assert 1 == damaged.finding_count
        assert (12, 0) == (shadow.hashed_count, shadow.difference_count)
        assert shadow.status() == datanode_pb2.ShadowHashing(running=True, compared_count=12)

    def test_a_version_that_takes_wrong_for_right_commits_nothing(
        self, replica: StoredReplica, shadow: ShadowHashing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its verdict is held; without the shadow it would call the replica whole."""
        replica.flip(2, 100)
        monkeypatch.setattr(replica_scan._Scan, "_compare", takes_all_for_right)

        held = scanned(replica, shadow)
        alone = scanned(replica, None)

        assert not held.committed
        assert held.tripped_reason.startswith(
            "shadow: by the former code, block 2 at 0: it does not"
        )
        assert (True, 0) == (alone.committed, alone.finding_count)
        assert 1 == shadow.difference_count

    def test_a_version_that_takes_right_for_wrong_commits_nothing(
        self, replica: StoredReplica, shadow: ShadowHashing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is committed although the judge clears the chunks, because a host that does so
        is not well.
        """
        monkeypatch.setattr(replica_scan._Scan, "_compare", takes_all_for_wrong)

        held = scanned(replica, shadow)

        assert not held.committed
        assert "it fits" in held.tripped_reason
        assert ReplicaState.CLOSED is replica.store.replica(CONTAINER).state

    @pytest.mark.parametrize("meanwhile", ["repaired", "deleted"])
    def test_chunk_changed_during_the_scan_is_no_checksum_difference(
        self, replica: StoredReplica, shadow: ShadowHashing, meanwhile: str
    ) -> None:
        """A replica under repair must not cause a rollback to the previous version."""
        replica.flip(2, 100)
        reads: list[int] = []

        def change(length_bytes: int) -> None:
            reads.append(length_bytes)
            if len(reads) == 2 and meanwhile == "deleted":  # the bad chunk was just read
                remove_blocks(replica.store, CONTAINER, [BlockId(2)])
            elif len(reads) == 2:
                (volume,) = replica.store.volume_set.working
                volume.index.write(
                    lambda rows: rows.put_replica(CONTAINER, moved_on(rows.replica(CONTAINER)))
                )

        tools = replace(replica.tools, shadow=shadow)
        report = scan_container(tools, CONTAINER, progress=change)

        assert 0 == shadow.difference_count
        assert report.committed  # it was read again
        assert (1 if meanwhile == "repaired" else 0) == report.finding_count

    def test_chunk_unjudged_for_lack_of_descriptors_is_no_difference(
        self, replica: StoredReplica, shadow: ShadowHashing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The chunk is damaged, and could not be read again."""
        replica.flip(2, 100)

        def refuse(*_arguments: object) -> bytes:
            raise OSError(errno.EMFILE, "too many open files")

        monkeypatch.setattr(BlockFile, "reread_past_cache", refuse)

        report = scanned(replica, shadow)

        assert (0, "EMFILE") == (shadow.difference_count, report.tripped_reason[-6:])

    def test_a_right_chunk_that_is_taken_for_wrong_is_one_though_the_scan_ends(
        self, replica: StoredReplica, shadow: ShadowHashing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Chunks judged before the end would be marked."""
        monkeypatch.setattr(replica_scan._Scan, "_compare", takes_all_for_wrong)
        reads: list[int] = []

        report = scan_container(
            replace(replica.tools, shadow=shadow),
            CONTAINER,
            stop=lambda: len(reads) > 4,
            progress=reads.append,
        )

        assert "it fits" in report.tripped_reason

    def test_the_log_tells_why_it_is_held(
        self, replica: StoredReplica, shadow: ShadowHashing, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An auditor sees that a verdict was not acted on."""
        replica.flip(1, 5)
        monkeypatch.setattr(replica_scan._Scan, "_compare", takes_all_for_right)

        scanned(replica, shadow)

        *_, last = entries(read_log(replica.path))
        assert "held" == last.facts["verdict"]
        assert last.facts["why"].startswith("shadow: ")

    def test_a_process_that_dies_ends_the_shadow_only(self, replica: StoredReplica) -> None:
        """Scans go on as ever."""
        clock = FakeClock()

        def dead(*_: object) -> bytes:
            raise ReferenceUnavailable("gone")

        shadow = ShadowHashing(clock.now_ms, clock, sums=dead, share=1.0)

        report = scanned(replica, shadow)

        assert report.committed
        assert not shadow.is_active()


class TestWhen:
    """The first hours of a version."""

    def test_only_for_some_hours_and_as_long_as_something_differs(self) -> None:
        """Then what it found keeps it going."""
        clock = FakeClock()
        since_ms = clock.now_ms()
        shadow = ShadowHashing(lambda: since_ms, clock)
        first = shadow.is_active()
        clock.advance_s(SHADOW_S - 1)
        before = shadow.is_active()
        clock.advance_s(2)
        after = shadow.is_active()
        shadow.differed(CONTAINER, ["block 1"])

        assert (True, True, False) == (first, before, after)
        assert shadow.is_active()

    def test_not_where_no_other_version_was(self) -> None:
        """A new agent is no upgrade."""
        assert not ShadowHashing(lambda: 0, FakeClock()).is_active()

    def test_about_one_read_in_a_hundred(self) -> None:
        """The share is measured over many draws."""
        shadow = ShadowHashing(lambda: 1, FakeClock())

        count = sum(shadow.draw() for _ in range(100_000))

        assert 800 < count < 1_200

    def test_the_log_knows_since_when_a_version_writes(self, tmp_path: Path) -> None:
        """Over restarts: of the first 0, of the second when it came; and the chain holds."""
        replica = StoredReplica(tmp_path / "volume")
        replica.create()
        replica.scan()
        replica.close()
        ticks = itertools.count(NOW_MS, 1_000)

        def began(software: str) -> int:
            options = replace(replica.options, software=software, now_ms=lambda: next(ticks))
            store = ReplicaStore.open(
                [tmp_path / "volume"], cluster_id=CLUSTER, datanode_id=DATANODE, options=options
            )
            at_ms = store.volume_set.upgraded_at_ms()
            store.close()
            return at_ms

        first, again = began("1.0"), began("1.0")
        second, still = began("2.0"), began("2.0")

        log = read_log(tmp_path / "volume")
        files = [
            one.facts["software"] for one in entries(log) if one.facts["kind"] == EntryKind.FILE
        ]
        assert ["", "1.0", "2.0"] == files
        assert NOW_MS <= first == again < second == still
        assert check(log).gap is None


class TestFormer:
    """The other process."""

    @pytest.mark.parametrize("kind", [one for one in ChecksumType if one is not ChecksumType.NONE])
    def test_former_hasher_agrees_with_the_hot_path(self, kind: ChecksumType) -> None:
        """All checksum types and partial windows are compared."""
        hasher = ReferenceChecksums()
        data = bytes(range(256)) * 100
        try:
            told = hasher.sums(kind, 4096, data)
            again = hasher.sums(kind, 512, b"x")
        finally:
            hasher.close()

        assert told == window_checksums(kind, 4096, data)
        assert again == window_checksums(kind, 512, b"x")

    @pytest.mark.skipif(
        os.uname().machine not in SETPRIORITY, reason="the filter knows no numbers of this machine"
    )
    def test_former_hasher_works_without_permission_to_set_its_priority(self) -> None:
        """The unit's SystemCallFilter= forbids it for all processes that the agent starts."""
        asked = (
            "import os\n"
            "from agent.scan.shadow.reference_checksums import ReferenceChecksums\n"
            "from merkle.replica import ChecksumType\n"
            "from tests.support.faults.refused_calls import refuse_setpriority\n"
            "refuse_setpriority()\n"
            "try:\n    os.nice(1)\nexcept PermissionError:\n    print('refused')\n"
            "hasher = ReferenceChecksums()\n"
            "print(hasher.sums(ChecksumType.CRC32C, 512, b'x').hex())\n"
            "hasher.close()\n"
        )

        told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)

        expected = window_checksums(ChecksumType.CRC32C, 512, b"x").hex()
        assert ["refused", expected] == told.stdout.split(), told.stderr

    def test_killed_former_hasher_is_restarted(self) -> None:
        """The caller gets one error."""
        hasher = ReferenceChecksums()
        try:
            hasher.sums(ChecksumType.CRC32C, 512, b"x")
            assert hasher._process is not None
            hasher._process.kill()
            hasher._process.wait()
            with pytest.raises(ReferenceUnavailable):
                hasher.sums(ChecksumType.CRC32C, 512, b"x")
            told = hasher.sums(ChecksumType.CRC32C, 512, b"x")
        finally:
            hasher.close()

        assert told == window_checksums(ChecksumType.CRC32C, 512, b"x")
