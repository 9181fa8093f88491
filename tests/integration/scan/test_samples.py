"""Samples of a store that is in use: what is drawn, how it is judged, and what is told apart."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from agent.leases import ContainerLeases
from agent.scan.sampling.samples import ChunkSampler
from agent.scan.throttle import ScanPace
from agent.services.service_protocols import SampleResult, SampleSpec
from agent.store.operations.reading import LocalReplicaView
from merkle.replica import BlockId, ContainerId
from scanner.finding import DamageFault
from scanner.scan_rate_control import PaceLimits
from suture.errors import Code, UnavailableError
from suture.runtime.clock import SystemClock
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.stored_replica import CONTAINER, StoredReplica

CHUNKS = 20  # five containers of two blocks of two chunks


class SeenLeases(ContainerLeases):
    """The leases of a store, and whether a sample has asked for one."""

    def __init__(self, leases: ContainerLeases) -> None:
        self.asked = Event()
        self.hold_of = leases.hold

    @contextmanager
    def hold(
        self, container_id: ContainerId, timeout_s: float = 30.0, *, writes_chunks: bool = True
    ) -> Iterator[None]:
        """Say that somebody asks, then wait as everybody does."""
        self.asked.set()
        with self.hold_of(container_id, timeout_s, writes_chunks=writes_chunks):
            yield


class Sampler:
    """Samples of a store, what was asked to be scanned, and how many bytes were paced."""

    def __init__(self, replica: StoredReplica) -> None:
        self.leases = SeenLeases(replica.leases)
        self.asked: list[ContainerId] = []
        self.paced: list[tuple[str, int]] = []
        self.stops = False
        self.samples = ChunkSampler(
            replica.store,
            self.leases,
            SystemClock(),
            pace=self._pace,
            request_scan=self._ask,
            is_stopping=lambda: self.stops,
        )

    def _ask(self, container_id: ContainerId) -> bool:
        self.asked.append(container_id)
        return False  # the queue is full

    def _pace(self, volume_id: str) -> ScanPace:
        paced = self.paced

        class Noted(ScanPace):
            def __call__(self, length_bytes: int) -> None:
                paced.append((volume_id, length_bytes))

        return Noted(PaceLimits(floor_bytes_per_s=1), lambda _: False)

    def run(self, chunk_count: int = 0, drawn_count: int = 0, seed: int = 1) -> SampleResult:
        """Draw a sample; return what came of it."""
        *_, last = self.samples.run(SampleSpec(chunk_count, drawn_count, seed), lambda: False)
        assert last.result is not None
        return last.result


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[StoredReplica]:
    """Return a store of five containers that is open."""
    made = StoredReplica(tmp_path / "volume")
    for number in range(1, 6):
        made.create(ContainerId(number), blocks=2)
    yield made
    made.close()


def test_chunks_are_counted_and_none_is_read(replica: StoredReplica) -> None:
    """The sample size is zero."""
    sampler = Sampler(replica)

    result = sampler.run()

    assert (CHUNKS, 0, 0) == (result.chunk_count, result.read_count, result.gone_count)
    assert [] == sampler.paced


def test_sample_reads_the_drawn_chunks_at_the_pace_of_their_volume(
    replica: StoredReplica,
) -> None:
    """All chunks are whole, and the same seed draws the same chunks."""
    sampler = Sampler(replica)

    result = sampler.run(CHUNKS, 7)
    paced = list(sampler.paced)
    again = sampler.run(CHUNKS, 7)

    [volume] = replica.store.volumes()
    assert (7, 0, 0, 0) == (
        result.read_count,
        result.bad_count,
        result.undecided_count,
        result.gone_count,
    )
    assert result.bytes_read == sum(length for _, length in paced) > 0
    assert {volume.volume_id} == {volume_id for volume_id, _ in paced}
    assert paced == sampler.paced[7:]
    assert result == again


def test_a_bad_chunk_is_told_and_its_replica_is_read_next(replica: StoredReplica) -> None:
    """With the judge's words; a file that is gone is bad, too. Nothing is marked by a sample."""
    replica.flip(1, 100)
    replica.file(2, ContainerId(3)).unlink()
    sampler = Sampler(replica)

    result = sampler.run(CHUNKS, CHUNKS)

    assert [
        (CONTAINER, 1, 0, DamageFault.CHUNK_CHECKSUM),
        (3, 2, 0, DamageFault.CHUNK_MISSING),
        (3, 2, 100_000, DamageFault.CHUNK_MISSING),
    ] == [(one.container_id, one.block_id, one.offset, one.fault) for one in result.bad]
    assert 3 == result.bad_count
    assert {CONTAINER, 3} == set(sampler.asked)
    assert [] == replica.store.findings()


def test_chunks_deleted_since_the_count_are_reported_gone(
    replica: StoredReplica,
) -> None:
    """Deleted chunks are neither bad nor read."""
    sampler = Sampler(replica)
    counted = sampler.run().chunk_count
    replica.store.delete_container(ContainerId(5), force=True)
    remove_blocks(replica.store, ContainerId(4), [BlockId(1)])

    result = sampler.run(counted, counted)

    assert (CHUNKS - 6, 6, 0, 0) == (
        result.read_count,
        result.gone_count,
        result.bad_count,
        result.undecided_count,
    )


def test_chunks_deleted_during_the_draw_are_reported_gone(replica: StoredReplica) -> None:
    """A container was counted, and is deleted before its chunks are read."""
    sampler = Sampler(replica)

    def cancelled() -> bool:
        if len(sampler.paced) == 2 and ContainerId(1) in replica.store.replica_ids():
            replica.store.delete_container(ContainerId(1), force=True)
        return False

    steps = sampler.samples.run(SampleSpec(CHUNKS, CHUNKS, 1), cancelled)
    *_, last = steps

    assert last.result is not None
    assert (CHUNKS - 2, 2) == (last.result.read_count, last.result.gone_count)
    assert 0 == last.result.bad_count


def test_a_damaged_row_and_a_replica_that_cannot_be_read_are_told(
    replica: StoredReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that could not cover everything is not clean."""
    replica.damage_row(1)
    rows = LocalReplicaView.block_rows

    def refusing(self: LocalReplicaView, start: int = 0) -> Iterator[tuple[BlockId, bytes]]:
        if self.container_id == 2:
            raise UnavailableError(Code.UNAVAILABLE, "the volume does not answer")
        return rows(self, start)

    monkeypatch.setattr(LocalReplicaView, "block_rows", refusing)
    result = Sampler(replica).run()

    assert (CHUNKS - 6, 1, 1) == (
        result.chunk_count,
        result.damaged_row_count,
        result.unread_count,
    )
    assert ["container 2: the volume does not answer"] == result.unread


def test_bad_looking_chunk_is_read_again_under_the_lease(replica: StoredReplica) -> None:
    """Bytes that are being written under another row are no damage, because the writer holds the
    lease.
    """
    replica.flip(1, 100)
    sampler = Sampler(replica)

    with ThreadPoolExecutor(1) as pool:
        with replica.leases.hold(CONTAINER):
            drawn = pool.submit(sampler.run, CHUNKS, CHUNKS)
            assert sampler.leases.asked.wait(30)
            replica.flip(1, 100)
        result = drawn.result()

    assert (CHUNKS, 0, 0) == (result.read_count, result.bad_count, result.undecided_count)
    assert [] == sampler.asked


def test_single_sample_runs_at_a_time_and_stops_with_its_caller(replica: StoredReplica) -> None:
    """A second sample is refused as busy. A sample ends if its caller has gone or its agent
    stops.
    """
    sampler = Sampler(replica)
    first = sampler.samples.run(SampleSpec(CHUNKS, CHUNKS, 1), lambda: True)

    with pytest.raises(UnavailableError, match="stopped"):
        list(first)
    sampler.stops = True
    with pytest.raises(UnavailableError, match="stopped"):
        sampler.run(CHUNKS, CHUNKS)
    sampler.stops = False

    def second() -> bool:
        with pytest.raises(UnavailableError, match="another sample"):
            sampler.run(CHUNKS, CHUNKS)
        return False

    for last in sampler.samples.run(SampleSpec(CHUNKS, 2, 1), second):
        if last.result is not None:
            assert 0 == sampler.run().read_count  # who has the result may come again at once
    assert last.result is not None
    assert 2 == last.result.read_count
