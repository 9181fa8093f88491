"""Reconstruction of lost shards from the remaining ones. All data is verified before it is written.

1. Find the blocks that too few sources have. If one of them belongs to a key, refuse the
reconstruction. 2. Create the target shards in state RECOVERING. 3. For each block, determine its
length. For each stripe, read, compute and verify the cells, and write them. Small blocks are
written in batches. 4. Close the targets. Each target scans its shard.

`suture.client.stripes.cell_rebuild` describes how a stripe is verified before it is written. If too
few sources have a block and no key refers to the block, then the client has abandoned the block.
The reconstruction omits such a block. If a key refers to the block, the sources have lost the
block. The reconstruction is then refused, because the new shard would count as complete without the
block.

If a step fails, the new shards are removed. Existing replicas are not changed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from agent.reconstruct.targets import RebuildTargets
from merkle.replica import BlockId, ContainerId
from suture.client.stripes.cell_rebuild import BlockBuilder, CellRebuilder, Made, stripes_of
from suture.client.stripes.stripe_sources import SLOW_S, RebuildSources
from suture.ec.blockgroup import OrphanGroup, RebuildableGroup, resolve_group
from suture.ec.rebuild_task import RebuildStats, RebuildTask, Reconstruction
from suture.errors import Code, RefusedError, UnavailableError
from suture.runtime.ports import Executor
from suture.wire.clients.replica_peer import DialShard
from suture.wire.clients.shard_writer import WholeBlock

SMALL_BYTES_MAX: Final = 256 * 1024  # blocks up to this size per shard are written in batches

Needed = Callable[[ContainerId, Sequence[BlockId]], frozenset[BlockId]]


@dataclass(eq=False)
class ReconstructionCoordinator:
    """Rebuilds lost shards. Each call of `reconstruct` executes one task. Thread-safe.

    `executor` needs enough threads for all cells of a stripe and all targets at the same time.
    `pace` is called with the number of bytes read, and waits until more may be read. `needed`
    returns the given blocks that belong to a key, and raises SutureError if the control plane does
    not answer. `needed` is None if the control plane has no such request, for example Ozone's SCM.
    """

    executor: Executor
    dial: DialShard
    _: KW_ONLY
    now_ms: Callable[[], int]
    pace: Callable[[int], None] = lambda _: None
    needed: Needed | None = None
    slow_s: float = SLOW_S

    def reconstruct(
        self, order: RebuildTask, *, stop: Callable[[], bool] = lambda: False
    ) -> Reconstruction:
        """Rebuild the shards that the task `order` names.

        If `stop` returns True, the reconstruction ends between two blocks or stripes. Raise
        SutureError if the reconstruction fails. The new shards on all reachable targets are then
        removed.
        """
        order.check()
        started_ms = self.now_ms()
        account = RebuildStats()
        sources = RebuildSources(
            order.container_id, order.scheme, self.executor, account, slow_s=self.slow_s
        )
        sources.open(order.sources, self.dial)
        orphans = _orphans(sources, stop)
        self._check_orphans(sources, orphans)
        targets = RebuildTargets(
            order.container_id, order.targets, self.dial, self.executor, account
        )
        try:
            targets.create()
            run = _Run(sources, targets, account, self.pace, stop)
            run.rebuild_blocks()
            lost = {n: why for n, why in account.orphans.items() if n not in orphans}
            self._check_orphans(sources, lost)  # a source may have failed meanwhile
            targets.close(sources.bcsid)
        except BaseException:
            targets.remove()
            raise
        return Reconstruction(
            container_id=order.container_id,
            read_bytes=account.read_bytes,
            written_bytes=account.written_bytes,
            block_count=account.block_count,
            orphans=account.orphans,
            replaced=account.replaced,
            duration_ms=self.now_ms() - started_ms,
        )

    def _check_orphans(self, sources: RebuildSources, orphans: Mapping[int, str]) -> None:
        """Raise RefusedError if one of the `orphans` belongs to a key.

        Orphans are blocks that too few sources have. Before the error is raised, each source that
        does not list the block is asked to prove that it has the block. If the source has lost the
        index row of the block, it then scans its replica. If `needed` is None, raise
        UnavailableError if a shard does not answer, because that shard may have the block.
        """
        if not orphans:
            return
        container_id = sources.container_id
        if self.needed is None:
            sources.require_answers(orphans)
            return
        asked = [BlockId(block_id) for block_id in sorted(orphans)]
        needed = sorted(self.needed(container_id, asked))
        for block_id in needed:
            sources.challenge_missing(block_id)
        if needed:
            raise RefusedError(
                Code.INELIGIBLE,
                f"cannot reconstruct container {container_id}: block {needed[0]} belongs to a "
                f"key, and {orphans[needed[0]]}",
                hint="scan the source replicas and reconcile them",
                container_id=container_id,
            )


def _orphans(sources: RebuildSources, stop: Callable[[], bool]) -> dict[int, str]:
    """Return the blocks that too few sources have, with the reasons. Only metadata is read for
    this."""
    orphans: dict[int, str] = {}
    for block_id, known in sources.blocks():
        check_going_on(stop)
        agreed = resolve_group(sources.scheme, block_id, known)
        if isinstance(agreed, OrphanGroup):
            orphans[block_id] = agreed.reason
    return orphans


@dataclass(slots=True)
class _BlockInProgress:
    """A block whose cells are being computed, and its unfinished record for each target shard."""

    drafts: dict[int, BlockBuilder]
    stripes: Sequence[int]  # stripes in which a target has a cell
    is_small: bool
    data: dict[int, bytearray]  # the concatenated cells of a small block

    def add_cells(self, made: Made) -> None:
        """Add the computed cells of the next stripe. `made` has one cell for each target shard."""
        for index, (chunk, cell) in made.items():
            self.drafts[index].chunks.append(chunk)
            if self.is_small:
                self.data[index] += cell

    def blocks(self) -> dict[int, WholeBlock]:
        """Return the record and the data of a complete small block for each target shard."""
        return {i: (draft.block(), bytes(self.data[i])) for i, draft in self.drafts.items()}


@dataclass(eq=False)
class _Run:
    """The state of one running reconstruction.

    The stripes of the next blocks are read in advance, and small blocks are written in batches. A
    container may have a million small blocks, and separate writes would cost several calls and a
    sync for each.
    """

    sources: RebuildSources
    targets: RebuildTargets
    account: RebuildStats
    pace: Callable[[int], None]
    stop: Callable[[], bool]

    def __post_init__(self) -> None:
        self._maker = CellRebuilder(self.sources, self.targets.shards)
        self._growing: dict[BlockId, _BlockInProgress] = {}

    def rebuild_blocks(self) -> None:
        """Rebuild every block that enough sources have. Record all other blocks as orphans."""
        paced_bytes = self.account.read_bytes
        for reading in self.sources.prefetch(self._target_stripes()):
            block_id = reading.agreed.block_id
            growing = self._growing.get(block_id)
            if growing is None:
                continue  # an earlier stripe showed that the block was deleted
            try:
                cells = self.sources.finish(reading)
                made = self._maker.made(reading.agreed, reading.stripe, cells)
            except UnavailableError as error:
                self._leave_out(block_id, error)
                continue
            check_going_on(self.stop)
            self.pace(self.account.read_bytes - paced_bytes)
            paced_bytes = self.account.read_bytes
            growing.add_cells(made)
            self._write(block_id, growing, made, reading.stripe)

    def _target_stripes(self) -> Iterator[tuple[RebuildableGroup, int]]:
        """Yield the stripes in which a target has a cell, block by block."""
        for block_id, known in self.sources.blocks():
            check_going_on(self.stop)
            agreed = resolve_group(self.sources.scheme, block_id, known)
            if isinstance(agreed, OrphanGroup):
                self.account.orphans[block_id] = agreed.reason
                continue
            indexes = self.targets.shards
            growing = _BlockInProgress(
                drafts={index: BlockBuilder(agreed, index) for index in indexes},
                stripes=stripes_of(agreed, indexes),
                is_small=max(map(agreed.group.shard_bytes, indexes)) <= SMALL_BYTES_MAX,
                data={index: bytearray() for index in indexes},
            )
            if not growing.stripes:
                self.targets.add(growing.blocks())
                self.account.block_count += 1
                continue
            self._growing[block_id] = growing
            for stripe in growing.stripes:
                yield agreed, stripe

    def _write(self, block_id: BlockId, growing: _BlockInProgress, made: Made, stripe: int) -> None:
        """Write the computed cells of one stripe to the targets.

        The cells of a large block are written now. A small block is added to the next batch when
        all of its cells are computed.
        """
        is_last = stripe == growing.stripes[-1]
        drafts = growing.drafts
        if not growing.is_small:
            whole = {i: drafts[i].block() for i in made if drafts[i].is_whole}
            self.targets.write(block_id, made, whole)
        if not is_last:
            return
        del self._growing[block_id]
        self.account.block_count += 1
        if growing.is_small:
            self.targets.add(growing.blocks())
        else:
            self.targets.add({i: (d.block(), b"") for i, d in drafts.items() if not d.chunks})

    def _leave_out(self, block_id: BlockId, error: UnavailableError) -> None:
        """Record a block as an orphan (a block that too few sources have) if it was deleted
        meanwhile.

        If the block was not deleted, raise `error`. `_check_orphans` later checks that the block
        belongs to no key.
        """
        why = self.sources.deletion_text(block_id)
        if not why:
            raise error
        del self._growing[block_id]
        self.account.orphans[block_id] = why


def check_going_on(stop: Callable[[], bool]) -> None:
    """Raise UnavailableError(CANCELLED) if `stop` returns True."""
    if stop():
        raise UnavailableError(Code.CANCELLED, "the reconstruction was stopped")
