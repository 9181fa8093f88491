"""Cells of many small blocks come in few calls, and each of them has its own fate."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as real_wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from merkle.replica import BlockId, ChunkInfo, ContainerId
from suture.client.stripes import stripe_sources as sources_module
from suture.client.stripes.cell_reads import read_cells
from suture.client.stripes.stripe_sources import SILENT_COUNT_MAX, RebuildSources
from suture.ec.blockgroup import RebuildableGroup, resolve_group
from suture.ec.rebuild_task import RebuildStats
from suture.ec.scheme import CodecName, Scheme
from suture.errors import Code, RefusedError, SutureError, UnavailableError, VolumeFailed
from suture.runtime.ports import Executor
from suture.wire.clients import message_groups
from suture.wire.clients.block_peer import TransferCost
from suture.wire.clients.peer import Peer
from tests.support.storage.ec_cluster import CONTAINER, EcCluster, described, ec_cluster, flip

SCHEME = Scheme(CodecName.RS, 3, 2, 4096)
BLOCK_COUNT = 20
BLOCK_BYTES = 3 * 4096  # one stripe: a cell in each shard
TOGETHER_MAX = 8  # fewer than a message has room for, so that few blocks make several groups
GROUP_COUNT = 3
WAIT_S = 30.0
WAITS_MAX = 30

Key = tuple[BlockId, int]


class Noted(Peer):
    """A datanode that notes what it is asked for; `error` is its answer to several at once."""

    def __init__(self, address: str, error: SutureError | None = None) -> None:
        super().__init__(address)
        self.together: list[int] = []
        self.alone: list[BlockId] = []
        self._error = error

    def read_chunks(
        self, container_id: ContainerId, keys: Sequence[Key]
    ) -> dict[Key, tuple[ChunkInfo, bytes]]:
        """Note how many."""
        self.together.append(len(keys))
        if self._error is not None:
            raise self._error
        return super().read_chunks(container_id, keys)

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Note which."""
        self.alone.append(block_id)
        return super().read_chunk(container_id, block_id, offset, meter)


class SilentAtFirst(Noted):
    """A datanode that does not answer its first call for several."""

    def read_chunks(
        self, container_id: ContainerId, keys: Sequence[Key]
    ) -> dict[Key, tuple[ChunkInfo, bytes]]:
        """Answer from the second on."""
        self.together.append(len(keys))
        if len(self.together) == 1:
            raise UnavailableError(Code.UNAVAILABLE, "nobody answers")
        return Peer.read_chunks(self, container_id, keys)


class SilentAlone(Noted):
    """A datanode that answers no call for one cell."""

    def read_chunk(
        self,
        container_id: ContainerId,
        block_id: BlockId,
        offset: int,
        meter: TransferCost | None = None,
    ) -> tuple[ChunkInfo, bytes]:
        """Note which, and do not answer."""
        del container_id, offset, meter
        self.alone.append(block_id)
        raise UnavailableError(Code.UNAVAILABLE, "nobody answers")


class Rewritten(Noted):
    """A datanode that serves another version of one block than it listed, if asked for several."""

    def read_chunks(
        self, container_id: ContainerId, keys: Sequence[Key]
    ) -> dict[Key, tuple[ChunkInfo, bytes]]:
        """Return other bytes, with the checksums that they have."""
        served = super().read_chunks(container_id, keys)
        key = BlockId(7), 0
        if key in served:
            chunk, data = served[key]
            data = data[::-1]
            served[key] = described(chunk.offset, data), data
        return served


class Plain:
    """A datanode of another kind, which gives no several cells at once."""

    def __init__(self, peer: Peer) -> None:
        self.address = peer.address
        self.replica, self.block = peer.replica, peer.block
        self.each_block, self.read_chunk = peer.each_block, peer.read_chunk
        self.summary, self.ranges, self.tree = peer.summary, peer.ranges, peer.tree
        self.blocks, self.chunks = peer.blocks, peer.chunks


@dataclass(slots=True)
class Held:
    """An executor that begins nothing at one address."""

    executor: Executor
    address: str
    held: list[Future[Any]]

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Any:
        """Begin the work, or keep it."""
        if work is not read_cells or arguments[0].address != self.address:
            return self.executor.submit(work, *arguments)
        self.held.append(Future())
        return self.held[-1]


class Stalled(Noted):
    """A datanode that answers calls for several when it is released."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.release = threading.Event()

    def read_chunks(
        self, container_id: ContainerId, keys: Sequence[Key]
    ) -> dict[Key, tuple[ChunkInfo, bytes]]:
        """Wait first."""
        self.release.wait(WAIT_S)
        return super().read_chunks(container_id, keys)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EcCluster]:
    """Serve many blocks of one stripe; tests damage a block of their own each."""
    path = tmp_path_factory.mktemp("small")
    with ec_cluster(path, SCHEME, [BLOCK_BYTES] * BLOCK_COUNT) as made:
        made.serve()
        yield made


@pytest.fixture(autouse=True)
def few_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have groups of few blocks."""
    monkeypatch.setattr(message_groups, "GROUP_COUNT_MAX", TOGETHER_MAX)


@contextmanager
def peers(cluster: EcCluster, **instead: Noted) -> Iterator[dict[str, Noted]]:
    """Dial all shards, each as what is noted of it, or as what stands in for it."""
    dialled = {
        name: instead.get(name) or Noted(cluster.nodes[number].address)
        for number, name in ((number, f"dn{number}") for number in SCHEME.indexes)
    }
    yield dialled
    for peer in dialled.values():
        peer.close()


def opened(
    cluster: EcCluster,
    dialled: Mapping[str, Noted],
    numbers: Iterable[int],
    *,
    slow_s: float = WAIT_S,
    executor: Executor | None = None,
) -> tuple[RebuildSources, RebuildStats]:
    """Return these shards as sources."""
    account = RebuildStats()
    sources = RebuildSources(
        CONTAINER, SCHEME, executor or cluster.executor, account, slow_s=slow_s
    )
    by_address = {peer.address: peer for peer in dialled.values()}
    sources.open([cluster.shard(n, n) for n in numbers], lambda shard: by_address[shard.address])
    return sources, account


def read_all(cluster: EcCluster, sources: RebuildSources) -> int:
    """Read one stripe of every block, and compare it; return how many there were."""
    count = 0
    for reading in sources.prefetch(wanted(sources)):
        cells = sources.finish(reading)
        written = cluster.groups[reading.agreed.block_id].stripes[0]
        assert cells.items() <= written.items()
        assert SCHEME.data_count == len(cells)
        count += 1
    return count


def wanted(sources: RebuildSources) -> Iterator[tuple[RebuildableGroup, int]]:
    """Yield the stripe of every block."""
    for block_id, known in sources.blocks():
        agreed = resolve_group(SCHEME, block_id, known)
        assert isinstance(agreed, RebuildableGroup)
        yield agreed, 0


def test_small_cells_are_fetched_in_few_calls(cluster: EcCluster) -> None:
    """There is one call for each source and group of blocks."""
    with peers(cluster) as dialled:
        sources, account = opened(cluster, dialled, (1, 2, 3, 4))

        assert BLOCK_COUNT == read_all(cluster, sources)

        assert [GROUP_COUNT] * 3 == [len(dialled[f"dn{n}"].together) for n in (1, 2, 3)]
        assert [] == [*dialled["dn4"].together, *(b for p in dialled.values() for b in p.alone)]
        assert BLOCK_COUNT * BLOCK_BYTES == account.read_bytes


def test_a_damaged_one_comes_from_another_shard_and_the_rest_as_before(
    cluster: EcCluster,
) -> None:
    """The damaged cell is fetched alone once, which shows the damage."""
    flip(cluster.nodes[2], 7, 100)
    with peers(cluster) as dialled:
        sources, account = opened(cluster, dialled, (1, 2, 3, 4))
        try:
            assert BLOCK_COUNT == read_all(cluster, sources)
        finally:
            flip(cluster.nodes[2], 7, 100)  # back

        assert [7] == dialled["dn2"].alone
        assert [7] == dialled["dn4"].alone[:1]
        assert "dn-2" in account.replaced


def test_source_without_the_batch_call_is_asked_cell_by_cell(
    cluster: EcCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent of an earlier version is asked for each cell, and the refusal does not count as a
    failure.
    """
    monkeypatch.setattr(sources_module, "AHEAD_CALLS_MAX", 1)
    refusal = RefusedError(Code.MALFORMED_REQUEST, "no such method")
    with peers(cluster, dn1=Noted(cluster.nodes[1].address, refusal)) as dialled:
        sources, account = opened(cluster, dialled, (1, 2, 3, 4))

        assert BLOCK_COUNT == read_all(cluster, sources)

        assert [TOGETHER_MAX] * 2 == dialled["dn1"].together  # both under way at once
        assert BLOCK_COUNT == len(dialled["dn1"].alone)
        assert {} == account.replaced


def test_source_that_fails_a_batch_is_asked_cell_by_cell(cluster: EcCluster) -> None:
    """A failing disk may still have some of the cells."""
    failure = VolumeFailed(Code.IO_EXCEPTION, "a disk fails")
    with peers(cluster, dn1=Noted(cluster.nodes[1].address, failure)) as dialled:
        sources, account = opened(cluster, dialled, (1, 2, 3))

        assert BLOCK_COUNT == read_all(cluster, sources)

        assert GROUP_COUNT == len(dialled["dn1"].together)
        assert {} == account.replaced


def test_cell_that_differs_from_its_listing_is_fetched_alone(cluster: EcCluster) -> None:
    """The cell verifies by itself, but is no cell of this stripe."""
    with peers(cluster, dn1=Rewritten(cluster.nodes[1].address)) as dialled:
        sources, account = opened(cluster, dialled, (1, 2, 3))

        assert BLOCK_COUNT == read_all(cluster, sources)

        assert [7] == dialled["dn1"].alone
        assert {} == account.replaced


def test_source_silent_for_one_cell_is_not_asked_for_those_behind_it(
    cluster: EcCluster,
) -> None:
    """Each further cell would wait as long."""
    refusal = RefusedError(Code.MALFORMED_REQUEST, "no such method")
    with peers(cluster, dn1=SilentAlone(cluster.nodes[1].address, refusal)) as dialled:
        sources, _ = opened(cluster, dialled, (1, 2, 3, 4))

        assert BLOCK_COUNT == read_all(cluster, sources)

        assert GROUP_COUNT == len(dialled["dn1"].alone)


def test_silence_of_a_batch_counts_once(cluster: EcCluster) -> None:
    """Otherwise one call would count as many, and a shard that is needed would be given up."""
    assert TOGETHER_MAX > SILENT_COUNT_MAX
    with peers(cluster, dn1=SilentAtFirst(cluster.nodes[1].address)) as dialled:
        sources, account = opened(cluster, dialled, (1, 2, 3))

        with pytest.raises(UnavailableError) as lost:
            read_all(cluster, sources)

        assert "nobody answers" in str(lost.value)  # of the one cell that it was asked for
        assert 1 in sources.live_sources
        assert "dn-1" in account.replaced


def test_cells_missing_from_a_silent_batch_are_asked_for_again(cluster: EcCluster) -> None:
    """With a fourth shard nothing is lost: one cell comes from there, and the others from their
    own source.
    """
    with peers(cluster, dn1=SilentAtFirst(cluster.nodes[1].address)) as dialled:
        sources, account = opened(cluster, dialled, (1, 2, 3, 4))

        assert BLOCK_COUNT == read_all(cluster, sources)

        assert ["dn-1"] == list(account.replaced)
        assert 1 in sources.live_sources


def test_a_stalled_call_is_waited_for_once(
    cluster: EcCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is not repeated for each cell on the stalled source. Others are asked for those
    cells at once.
    """
    in_vain: list[float] = []

    def waiting(pending: Any, timeout_s: float | None = None, when: str = FIRST_COMPLETED) -> Any:
        done, rest = real_wait(pending, timeout_s, when)
        if not done and timeout_s:
            in_vain.append(timeout_s)
        return done, rest

    monkeypatch.setattr(sources_module, "wait", waiting)
    stalled = Stalled(cluster.nodes[1].address)
    with peers(cluster, dn1=stalled) as dialled:
        sources, account = opened(cluster, dialled, (1, 2, 3, 4), slow_s=0.5)
        try:
            assert BLOCK_COUNT == read_all(cluster, sources)
        finally:
            stalled.release.set()

        assert len(in_vain) <= GROUP_COUNT  # the calls that were under way by then
        assert sources.live_sources[1].slow_count <= GROUP_COUNT
        assert "slow" in account.replaced["dn-1"]


def test_stalled_call_without_an_alternative_is_waited_for(
    cluster: EcCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is not polled in a loop meanwhile."""
    waits: list[float | None] = []
    stalled = Stalled(cluster.nodes[1].address)

    def waiting(pending: Any, timeout_s: float | None = None, when: str = FIRST_COMPLETED) -> Any:
        waits.append(timeout_s)
        if len(waits) > WAITS_MAX:
            stalled.release.set()
        return real_wait(pending, timeout_s, when)

    monkeypatch.setattr(sources_module, "wait", waiting)
    with peers(cluster, dn1=stalled) as dialled:
        sources, _ = opened(cluster, dialled, (1, 2, 3, 4), slow_s=0.05)
        flip(cluster.nodes[4], 2, 100)  # the others have another one
        try:
            assert BLOCK_COUNT == read_all(cluster, sources)
        finally:
            flip(cluster.nodes[4], 2, 100)

    assert waits.count(0) <= BLOCK_COUNT


def test_a_call_that_others_wait_for_is_not_taken_back(cluster: EcCluster) -> None:
    """The first stripe has its cells from others by then."""
    with peers(cluster) as dialled:
        held = Held(cluster.executor, dialled["dn1"].address, [])
        sources, _ = opened(cluster, dialled, (1, 2, 3, 4), slow_s=0.05, executor=held)

        assert BLOCK_COUNT == read_all(cluster, sources)

        assert [False] * GROUP_COUNT == [future.cancelled() for future in held.held]


def test_no_more_is_asked_for_ahead_than_there_is_memory_for(
    cluster: EcCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound covers all sources together."""
    monkeypatch.setattr(sources_module, "AHEAD_BYTES_MAX", TOGETHER_MAX * BLOCK_BYTES)
    with peers(cluster) as dialled:
        held = Held(cluster.executor, dialled["dn1"].address, [])
        sources, _ = opened(cluster, dialled, (1, 2, 3, 4), executor=held)

        next(sources.prefetch(wanted(sources)))

        assert 2 == len(held.held) < GROUP_COUNT  # the second one does not fit


def test_source_without_batches_has_a_bounded_number_of_calls_ahead(
    cluster: EcCluster,
) -> None:
    """Each call waits in a thread of its own."""
    with peers(cluster) as dialled:
        plain = {peer.address: Plain(peer) for peer in dialled.values()}
        held = Held(cluster.executor, dialled["dn1"].address, [])
        sources = RebuildSources(CONTAINER, SCHEME, held, RebuildStats())
        sources.open([cluster.shard(n, n) for n in (1, 2, 3)], lambda shard: plain[shard.address])

        next(sources.prefetch(wanted(sources)))

        assert sources_module.AHEAD_CALLS_MAX + 1 == len(held.held) < BLOCK_COUNT


def test_a_reconstruction_of_small_blocks_makes_few_calls(tmp_path: Path) -> None:
    """A reconstruction of small blocks makes few calls and produces what was lost."""
    with ec_cluster(tmp_path, SCHEME, [BLOCK_BYTES] * BLOCK_COUNT) as cluster:
        calls: list[str] = []
        cluster.serve()
        real = Peer.read_chunks

        class Counted(Peer):
            def read_chunks(
                self, container_id: ContainerId, keys: Sequence[Key]
            ) -> dict[Key, tuple[ChunkInfo, bytes]]:
                calls.append(self.address)
                return real(self, container_id, keys)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("tests.support.storage.ec_cluster.Peer", Counted)
            result = cluster.reconstruct(cluster.order([1]))

        assert BLOCK_COUNT == result.block_count
        assert SCHEME.data_count * GROUP_COUNT == len(calls)
        cluster.assert_shard(6, 1)
