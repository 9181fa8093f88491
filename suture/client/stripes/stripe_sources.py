"""Reads the cells of stripes from the remaining shards of a container.

If a cell is damaged in one source (a datanode with a shard), it is read from another source, or
computed. A source that returned wrong cells is asked after the other sources. It is not dropped,
because a stripe may need its cells.

If a source is slow, the reader also asks another source. It uses the first `data_count` cells that
arrive. Two datanodes may have the same shard, each with cells that the other has lost. Small cells
of consecutive stripes are read in one call.
"""

import heapq
import secrets
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import groupby
from typing import Any, Final
from weakref import WeakSet

from merkle.possession_proof import NONCE_BYTES
from merkle.replica import TREE_STATES, BlockData, BlockId, ContainerId, ReplicaState
from suture.client.stripes.cell_reads import CellAnswers, read_cells
from suture.ec.blockgroup import RebuildableGroup
from suture.ec.rebuild_task import RebuildStats, ShardLocation
from suture.ec.scheme import Scheme
from suture.ec.wrong_shard import Proof, StripeVerdict, judge_stripe
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.ports import Executor
from suture.wire.clients.channel import DatanodesSilent
from suture.wire.clients.message_groups import GROUP_BYTES_MAX, grouped
from suture.wire.clients.replica_peer import BatchReplicaPeer, ChunkProver, ReplicaPeer
from suture.wire.mapping import codec

SILENT_COUNT_MAX: Final = 3  # consecutive unanswered calls until a source is dropped
SLOW_S: Final = 5.0  # after that, the reader also asks another source
AHEAD_BYTES_MAX: Final = 48 * 1024**2  # maximum bytes of the cells that are requested ahead
AHEAD_CALLS_MAX: Final = 8  # per source, each for a large cell or several small ones
DEMERIT_SLOW: Final = 1  # weight of a slow answer, in faults

Listed = tuple[BlockId, Mapping[int, BlockData | None]]


@dataclass(slots=True)
class RebuildSource:
    """A shard on a datanode from which cells may be read, and the faults of the datanode so far."""

    shard: ShardLocation
    peer: ReplicaPeer
    is_healthy: bool = True  # according to its datanode's report
    gives_several: bool = True  # it returns several cells in one call
    strike_count: int = 0
    slow_count: int = 0
    silent_count: int = 0
    dropped: SutureError | None = None

    def rank(self, length_bytes: int) -> tuple[object, ...]:
        """Return the sort key of a source. Sources with healthy replicas come first, then sources
        with fewer faults, then sources with shorter cells. `length_bytes` is the length of the
        cell."""
        demerits = self.strike_count + DEMERIT_SLOW * self.slow_count
        return (not self.is_healthy, demerits, length_bytes, self.shard.index)


@dataclass(slots=True)
class PendingStripe:
    """A stripe of a block that is being read: the received cells, and the calls in flight."""

    agreed: RebuildableGroup
    stripe: int
    cells: dict[int, bytes]
    wanted_count: int
    pending: dict["Future[CellAnswers]", RebuildSource] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)  # datanodes asked for a cell of this stripe
    coming: set[int] = field(default_factory=set)  # indexes of requested shards


@dataclass(eq=False)
class RebuildSources:
    """The shards from which one block group or container is reconstructed. Only one thread uses the
    object."""

    container_id: ContainerId
    scheme: Scheme
    executor: Executor
    account: RebuildStats
    _: KW_ONLY
    slow_s: float = SLOW_S

    def __post_init__(self) -> None:
        self.bcsid = 0
        self._sources: dict[int, list[RebuildSource]] = {}  # by index, best first
        self._unreached: set[int] = set()  # indexes of shards that never answered
        self._shared: WeakSet[Any] = WeakSet()  # calls in flight that several stripes wait for
        self._late: WeakSet[Any] = WeakSet()  # calls that have been slow

    def open(
        self,
        shards: Iterable[ShardLocation],
        dial: Callable[[ShardLocation], ReplicaPeer],
        *,
        states: frozenset[ReplicaState] = TREE_STATES,
    ) -> None:
        """Ask every source for the state of its replica.

        If the index of a shard is 0 (unknown), it becomes the index that the datanode reports.
        Cells of an UNHEALTHY replica are used only if no other source has them, and if they match
        their checksums. Raise UnavailableError if fewer than `data_count` shards can be read.
        """
        asked = [(shard, dial(shard)) for shard in shards]
        answers = [
            (shard, peer, self.executor.submit(peer.replica, self.container_id))
            for shard, peer in asked
        ]
        for shard, peer, future in answers:
            source = RebuildSource(shard, peer, gives_several=isinstance(peer, BatchReplicaPeer))
            try:
                self._admit(source, future.result(), states)
            except SutureError as error:
                self.account.replaced[shard.datanode_id] = str(error)
                if isinstance(error, UnavailableError):
                    self._unreached.add(shard.index)
        self.require()

    def _admit(self, source: RebuildSource, report: Any, states: frozenset[ReplicaState]) -> None:
        """Add a source. Raise RefusedError if its replica is not the expected shard, or is not in
        one of `states`."""
        state = codec.parse_state(report.state, "answer.replica.state")
        [index] = self.scheme.checked([report.replica_index])
        if source.shard.index not in {0, index}:
            raise RefusedError(
                Code.INELIGIBLE, f"its replica has index {index}, not {source.shard.index}"
            )
        source.shard = replace(source.shard, index=index)
        if state not in states or report.load_error:
            raise RefusedError(
                Code.INELIGIBLE, f"its replica is {state} {report.load_error}".strip()
            )
        source.is_healthy = state is not ReplicaState.UNHEALTHY
        known = self._sources.setdefault(index, [])
        known.append(source)
        known.sort(key=lambda one: not one.is_healthy)
        self.bcsid = max(self.bcsid, report.bcsid)

    @property
    def live_sources(self) -> dict[int, RebuildSource]:
        """The best available source of each shard, by shard index."""
        return {
            index: next(one for one in sources if one.dropped is None)
            for index, sources in self._sources.items()
            if any(one.dropped is None for one in sources)
        }

    @property
    def _askable(self) -> list[RebuildSource]:
        """All available sources. Several of them may have the same shard."""
        return [one for many in self._sources.values() for one in many if one.dropped is None]

    def require(self) -> None:
        """Raise UnavailableError if fewer than `data_count` shards have an available source."""
        if len(self.live_sources) < self.scheme.data_count:
            raise self._shortage(
                f": {len(self.live_sources)} of the {self.scheme.data_count} sources "
                f"that {self.scheme} needs are left"
            )

    def require_answers(self, orphans: Mapping[int, str]) -> None:
        """Raise UnavailableError if a shard does not answer.

        `orphans` has the blocks that are in too few shards. The silent shard may have their missing
        data.
        """
        silent = sorted((self._unreached | self._sources.keys()) - self.live_sources.keys())
        if silent:
            block_id, why = next(iter(orphans.items()))
            named = ", ".join(map(str, silent))
            raise self._shortage(f", block {block_id}: {why}, and shard {named} does not answer")

    def _shortage(self, what: str) -> UnavailableError:
        """Return the error for a container that cannot be read, because too many sources fail."""
        is_silent = self._unreached or any(
            source.silent_count for many in self._sources.values() for source in many
        )
        kind = DatanodesSilent if is_silent else UnavailableError
        reasons = "; ".join(f"{who}: {why}" for who, why in self.account.replaced.items())
        listing = f"`suture scm containers {self.container_id}`"
        return kind(
            Code.UNAVAILABLE,
            f"container {self.container_id}{what}: {reasons}",
            hint=f"start a datanode that has another shard; {listing} lists them",
            container_id=self.container_id,
        )

    # Lists of blocks.

    def blocks(self) -> Iterator[Listed]:
        """Yield every block that a source lists, in ascending order of the ids.

        An item is a pair (block id, mapping). The mapping has, for each shard index, the record of
        the block in the best source, or None if no source of the shard lists the block. The lists
        are read page by page, because the lists of ten sources with half a million blocks do not
        fit into memory.
        """
        streams = [self._blocks_of(source) for source in self._askable]
        merged = heapq.merge(*streams, key=lambda item: item[0])  # best source first for equal ids
        for block_id, items in groupby(merged, key=lambda item: item[0]):
            found: dict[int, BlockData] = {}
            for _, index, block in items:
                found.setdefault(index, block)
            self.require()
            yield block_id, {index: found.get(index) for index in self.live_sources}

    def _blocks_of(self, source: RebuildSource) -> Iterator[tuple[BlockId, int, BlockData]]:
        try:
            for block in source.peer.each_block(self.container_id):
                yield block.block_id, source.shard.index, block
        except SutureError as error:
            self._drop(source, error)

    def block(self, block_id: BlockId) -> dict[int, BlockData | None]:
        """Return the record of one block in each shard, by shard index. The record is from the best
        source that has the block, or None if no source of the shard has it."""
        known: dict[int, BlockData | None] = dict.fromkeys(self.live_sources)
        for source, answer in self._answers(block_id):
            index = source.shard.index
            if isinstance(answer, SutureError):
                self._judge(source, answer)
            else:
                source.silent_count = 0
                known[index] = known[index] or answer
        return known

    def _answers(
        self, block_id: BlockId
    ) -> Iterator[tuple[RebuildSource, BlockData | SutureError]]:
        """Ask all sources for the record of a block at the same time. Yield each source with the
        record or the error."""
        asked = [
            (source, self.executor.submit(source.peer.block, self.container_id, block_id))
            for source in self._askable
        ]
        for source, future in asked:
            try:
                yield source, future.result()
            except SutureError as error:
                yield source, error

    def deletion_text(self, block_id: BlockId) -> str:
        """Return a text that names the datanodes that no longer have a block, if too few shards
        have it to compute it.

        Return "" otherwise. A source that does not answer counts as having the block.
        """
        lacking = {
            source.shard.datanode_id
            for source, answer in self._answers(block_id)
            if isinstance(answer, SutureError) and answer.code is Code.NO_SUCH_BLOCK
        }
        having = [
            index
            for index, sources in self._sources.items()
            if any(one.shard.datanode_id not in lacking for one in sources)
        ]
        if len(having) >= self.scheme.data_count:
            return ""
        return f"{', '.join(sorted(lacking))} have it no longer"

    def challenge_missing(self, block_id: BlockId) -> None:
        """Ask each source that does not list the block for a proof that it has the block.

        The proofs are ignored. If the tree of a source contains the block, the request makes the
        datanode scan its replica (`agent.services.proof_handlers`).
        """
        for index, block in self.block(block_id).items():
            for source in self._sources[index] if block is None else ():
                if isinstance(source.peer, ChunkProver):
                    with suppress(SutureError):  # the call itself triggers the scan
                        nonce = secrets.token_bytes(NONCE_BYTES)
                        source.peer.prove_chunks(self.container_id, [(block_id, 0, nonce)])

    # Cells.

    def stripes(
        self, agreed: RebuildableGroup, wanted: Iterable[int]
    ) -> Iterator[tuple[int, dict[int, bytes]]]:
        """Yield (number of the stripe, cells by shard index) for each wanted stripe of a block. The
        cells are enough to compute all others."""
        for reading in self.prefetch((agreed, stripe) for stripe in wanted):
            yield reading.stripe, self.finish(reading)

    def prefetch(
        self, wanted: Iterable[tuple[RebuildableGroup, int]], *, count: int = 0
    ) -> Iterator[PendingStripe]:
        """Yield the stripes in `wanted` in order, while cells of the following stripes are
        requested.

        Each item of `wanted` is a pair (block group, number of the stripe). The caller must call
        `finish` for each yielded stripe. `count` is the number of cells to request of each stripe,
        as in `begin`.
        """
        under_way: deque[list[PendingStripe]] = deque()
        bytes_max = AHEAD_BYTES_MAX // (count or self.scheme.data_count)  # per source
        for together in grouped(wanted, self._room_for):
            under_way.append(self._begin_all(together, count))
            while len(under_way) > AHEAD_CALLS_MAX or _asked_bytes(under_way) > bytes_max:
                yield from under_way.popleft()
        while under_way:
            yield from under_way.popleft()

    def _room_for(self, wanted: tuple[RebuildableGroup, int]) -> int:
        """Return the number of bytes that a stripe needs in one message of a source.

        If a source can return only single cells, return the maximum, because each cell then needs
        its own call in its own thread.
        """
        is_alone = not all(source.gives_several for source in self._askable)
        return GROUP_BYTES_MAX if is_alone else _cell_bytes(wanted)

    def begin(self, agreed: RebuildableGroup, stripe: int, *, count: int = 0) -> PendingStripe:
        """Request `count` cells of a stripe from the best sources; 0 = `data_count`.

        A cell that the block group does not have is empty and is not requested.
        """
        [reading] = self._begin_all([(agreed, stripe)], count)
        return reading

    def _begin_all(
        self, stripes: Sequence[tuple[RebuildableGroup, int]], count: int
    ) -> list[PendingStripe]:
        """Begin to read several stripes. If a source can return several cells in one call, its
        cells of all these stripes are requested in one call."""
        begun: list[PendingStripe] = []
        asked: defaultdict[str, list[tuple[RebuildSource, PendingStripe]]] = defaultdict(list)
        for agreed, stripe in stripes:
            group = agreed.group
            empty = {i: b"" for i in self.scheme.indexes if not group.cell_bytes(stripe, i)}
            reading = PendingStripe(agreed, stripe, dict(empty), count or self.scheme.data_count)
            for _ in range(reading.wanted_count - len(empty)):
                source = self._chosen(reading)
                if source is None:
                    break
                asked[source.shard.datanode_id].append((source, reading))
            begun.append(reading)
        for wishes in asked.values():
            source = wishes[0][0]
            wanted = [reading for _, reading in wishes]
            for some in [wanted] if source.gives_several else [[one] for one in wanted]:
                self._request_cells(source, some)
        return begun

    def finish(self, reading: PendingStripe) -> dict[int, bytes]:
        """Wait for the cells of a stripe and return them, verified. If a source fails or is slow,
        ask another source.

        Raise UnavailableError if `wanted_count` cells cannot be read.
        """
        may_ask = True
        while len(reading.cells) < reading.wanted_count:
            if not reading.pending and not self._request_from_next(reading):
                raise self._shortage(
                    f", block {reading.agreed.block_id}, stripe {reading.stripe}: "
                    f"{len(reading.cells)} of {reading.wanted_count} cells can be read"
                )
            is_late = may_ask and self._late.issuperset(reading.pending)
            done, _ = wait(reading.pending, 0 if is_late else self.slow_s, FIRST_COMPLETED)
            if not done:
                may_ask = self._note_slow(reading)
            for future in done:
                self._receive_cells(reading, future)
        for future in reading.pending.keys() - self._shared:
            future.cancel()
        return reading.cells

    def finish_all(self, reading: PendingStripe) -> dict[int, bytes]:
        """Wait for all requested cells of a stripe, and return the readable ones. Raise
        UnavailableError if fewer than `data_count` can be read."""
        reading.wanted_count = self.scheme.data_count
        while reading.pending:
            done, _ = wait(reading.pending, return_when=FIRST_COMPLETED)
            for future in done:
                self._receive_cells(reading, future)
        return self.finish(reading)

    def _receive_cells(self, reading: PendingStripe, future: "Future[CellAnswers]") -> None:
        source, agreed = reading.pending.pop(future), reading.agreed
        index = source.shard.index
        reading.coming.discard(index)
        key = agreed.block_id, agreed.chunk(index, reading.stripe).offset
        answers = future.result()
        source.gives_several = source.gives_several and answers.gives_several
        cell, error = answers.cells.get(key), answers.errors.get(key)
        if cell is not None:
            source.silent_count = 0
            self.account.read_bytes += len(cell)
            reading.cells[index] = cell
            return
        if error is None:  # the call ended before this cell was requested, so request it again
            reading.asked.discard(source.shard.datanode_id)
        else:
            self._judge(source, error)
        self._request_from_next(reading)

    def _request_from_next(self, reading: PendingStripe) -> bool:
        """Request a cell of this stripe from the best source that was not asked yet. Return False
        if there is none."""
        source = self._chosen(reading)
        if source is None:
            return False
        self._request_cells(source, [reading])
        return True

    def _chosen(self, reading: PendingStripe) -> RebuildSource | None:
        """Return the best source that was not asked for this stripe yet, and record it as asked.
        Return None if there is none."""
        agreed, stripe = reading.agreed, reading.stripe
        candidates = [
            source
            for source in self._askable
            if source.shard.datanode_id not in reading.asked
            and source.shard.index in agreed.shards
            and source.shard.index not in reading.coming | set(reading.cells)
        ]
        if not candidates:
            return None
        source = min(
            candidates, key=lambda one: one.rank(agreed.group.cell_bytes(stripe, one.shard.index))
        )
        reading.asked.add(source.shard.datanode_id)
        reading.coming.add(source.shard.index)
        return source

    def _request_cells(self, source: RebuildSource, wanted: Sequence[PendingStripe]) -> None:
        """Request the cells of these stripes from one source in one call."""
        chunks = [
            (one.agreed.block_id, one.agreed.chunk(source.shard.index, one.stripe))
            for one in wanted
        ]
        future = self.executor.submit(read_cells, source.peer, self.container_id, chunks)
        for reading in wanted:
            reading.pending[future] = source  # type: ignore[index]  # a real Future, by its port
        if len(wanted) > 1:
            self._shared.add(future)

    def _note_slow(self, reading: PendingStripe) -> bool:
        """Ask another source in place of each source that has not answered. Return True if another
        source was asked.

        The slow sources have a lower rank from then on.
        """
        asked_count = 0
        for future, source in list(reading.pending.items()):
            if not self._request_from_next(reading):
                break
            asked_count += 1
            if future not in self._late:
                self._late.add(future)
                source.slow_count += 1
                self.account.replaced.setdefault(
                    source.shard.datanode_id, f"slow: no answer in {self.slow_s:g} s"
                )
        return asked_count > 0

    def judged(
        self, agreed: RebuildableGroup, stripe: int, proof: Proof | None
    ) -> tuple[StripeVerdict, dict[int, bytes]]:
        """Read all readable cells of a stripe, and determine which of them are wrong.

        Return the result, and the cells without those that are proven wrong. The check is needed
        because a cell can be wrong although it matches its checksums.
        """
        reading = self.begin(agreed, stripe, count=self.scheme.shard_count)
        cells = self.finish_all(reading)
        verdict = judge_stripe(agreed.group, stripe, cells, proof)
        where = f"block {agreed.block_id}, stripe {stripe}"
        error = RefusedError(
            Code.CHECKSUM_MISMATCH, f"{where}: the cell is wrong although its checksums match"
        )
        for index in verdict.wrong:
            del cells[index]
            for source in self._sources[index]:
                self._judge(source, error)
        return verdict, cells

    def _judge(self, source: RebuildSource, error: SutureError) -> None:
        source.strike_count += 1
        self.account.replaced[source.shard.datanode_id] = str(error)
        if isinstance(error, UnavailableError):
            source.silent_count += 1
            if source.silent_count >= SILENT_COUNT_MAX:
                source.dropped = error

    def _drop(self, source: RebuildSource, error: SutureError) -> None:
        source.dropped = error
        self.account.replaced[source.shard.datanode_id] = str(error)


def _cell_bytes(wanted: tuple[RebuildableGroup, int]) -> int:
    agreed, stripe = wanted
    return agreed.group.cell_bytes_max(stripe)


def _asked_bytes(under_way: Iterable[list[PendingStripe]]) -> int:
    return sum(_cell_bytes((one.agreed, one.stripe)) for some in under_way for one in some)
