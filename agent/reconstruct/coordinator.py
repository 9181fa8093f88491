"""Reconstruction: lost shards from those that are left, proven before they count.

    targets RECOVERING ─► for each block: agree on its length
                            └► for each stripe: read ─► rebuild and prove ─► write
                       ─► close all ─► each target scans what it has

A stripe is proven three times before a byte of it is written: every cell read has the checksums
of its row; a cell that was read comes out again when it is computed from what was rebuilt; and all
cells together fold to the stripe checksum that the writer recorded, where there is one. When only
the last fails, some source holds wrong bytes that its own checksums vouch for: the other cells are
read, and the shard that is wrong is named and left aside, or nothing is rebuilt.

What fails ends the run: what it made is removed, and no replica that was there is touched.
"""

from collections.abc import Callable, Iterator, Mapping

from agent.ec.blockgroup import (
    Agreed,
    Orphan,
    agree,
    group_metadata,
    is_stripe_checksum,
    stripe_metadata,
)
from agent.ec.cell_codec import Cell, rebuild_checked
from agent.ec.cells import described, style_of
from agent.ec.rebuild_task import Account, Order, Reconstruction
from agent.errors import Code, Unavailable
from agent.ports import Executor
from agent.reconstruct.shard_peer import DialShard
from agent.reconstruct.sources import SLOW_S, Sources
from agent.reconstruct.targets import Targets
from merkle.replica import (
    Bcsid,
    BlockData,
    ChunkInfo,
)

Rebuilt = dict[int, tuple[ChunkInfo, memoryview]]


class Coordinator:
    """Carries reconstructions out, one per call; several threads may call.

    `executor` needs threads enough for all cells of a stripe and every target to be under way.
    `pace` is called with the bytes read, and returns when more may be read.
    """

    def __init__(
        self,
        executor: Executor,
        dial: DialShard,
        *,
        now_ms: Callable[[], int],
        pace: Callable[[int], None] = lambda _: None,
        slow_s: float = SLOW_S,
    ) -> None:
        self._executor = executor
        self._dial = dial
        self._now_ms = now_ms
        self._pace = pace
        self._slow_s = slow_s

    def reconstruct(
        self, order: Order, *, stop: Callable[[], bool] = lambda: False
    ) -> Reconstruction:
        """Rebuild what `order` names; `stop` turning true ends it between two stripes.

        Raises SutureError, and then nothing of what this run made is left where it can be reached.
        """
        order.check()
        started_ms = self._now_ms()
        account = Account()
        sources = Sources(
            order.container_id, order.scheme, self._executor, account, slow_s=self._slow_s
        )
        sources.open(order.sources, self._dial)
        targets = Targets(order.container_id, order.targets, self._dial, self._executor, account)
        try:
            targets.create()
            run = _Run(sources, targets, account, self._pace, stop)
            run.rebuild_blocks()
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
            duration_ms=self._now_ms() - started_ms,
        )


class _Run:
    """One reconstruction under way."""

    def __init__(
        self,
        sources: Sources,
        targets: Targets,
        account: Account,
        pace: Callable[[int], None],
        stop: Callable[[], bool],
    ) -> None:
        self._sources = sources
        self._targets = targets
        self._account = account
        self._pace = pace
        self._stop = stop
        self._scheme = sources.scheme

    def rebuild_blocks(self) -> None:
        """Rebuild every block that enough sources know; note the others."""
        for block_id, known in self._sources.blocks():
            agreed = agree(self._scheme, block_id, known)
            if isinstance(agreed, Orphan):
                self._account.orphans[block_id] = agreed.reason
                continue
            self._rebuild_block(agreed)
            self._account.block_count += 1

    def _rebuild_block(self, agreed: Agreed) -> None:
        group = agreed.group
        drafts = {index: _Draft(agreed, index) for index in self._targets.shards}
        for index, draft in drafts.items():
            if not group.shard_bytes(index):
                self._targets.commit(index, draft.block())
        for stripe, cells in self._stripes(agreed):
            rebuilt = self._rebuild_stripe(agreed, stripe, cells)
            for index, (chunk, _) in rebuilt.items():
                drafts[index].chunks.append(chunk)
            whole = {i: drafts[i].block() for i in rebuilt if drafts[i].is_whole}
            self._targets.write(agreed.block_id, rebuilt, whole)
        self._targets.flush()

    def _stripes(self, agreed: Agreed) -> Iterator[tuple[int, dict[int, bytes]]]:
        """Yield the stripes in which a target has a cell, with the cells to compute from."""
        group = agreed.group
        wanted = [
            stripe
            for stripe in range(group.stripe_count)
            if any(group.cell_bytes(stripe, index) for index in self._targets.shards)
        ]
        paced_bytes = self._account.read_bytes
        for stripe, cells in self._sources.stripes(agreed, wanted):
            if self._stop():
                raise Unavailable(Code.CANCELLED, "the reconstruction was stopped")
            self._pace(self._account.read_bytes - paced_bytes)
            paced_bytes = self._account.read_bytes
            yield stripe, cells

    def _rebuild_stripe(self, agreed: Agreed, stripe: int, cells: dict[int, bytes]) -> Rebuilt:
        rebuilt = self._computed(agreed, stripe, cells)
        if not self._is_recorded(agreed, stripe, rebuilt):
            cells = self._sources.without_the_wrong(agreed, stripe)
            rebuilt = self._computed(agreed, stripe, cells)
        return {
            index: cell
            for index, cell in rebuilt.items()
            if index in self._targets.shards and len(cell[1])
        }

    def _computed(self, agreed: Agreed, stripe: int, cells: Mapping[int, Cell]) -> Rebuilt:
        """Compute the targets' cells; and those that no source has, when a record can be checked.

        Cells whose chunk is known from its row need not be computed for that.
        """
        group = agreed.group
        wanted = set(self._targets.shards)
        if agreed.stripe_checksums:
            wanted |= set(self._scheme.indexes) - set(agreed.shards) - set(cells)
        made = rebuild_checked(
            self._scheme, cells, sorted(wanted - set(cells)), group.cell_bytes_max(stripe)
        )
        style, offset = style_of(agreed, stripe), stripe * self._scheme.cell_bytes
        cut = {i: octets[: group.cell_bytes(stripe, i)] for i, octets in made.items()}
        return {i: (described(offset, octets, style), octets.data) for i, octets in cut.items()}

    def _is_recorded(self, agreed: Agreed, stripe: int, rebuilt: Rebuilt) -> bool:
        """Return whether all cells are what the writer recorded, as far as that can be known."""
        chunks = {
            index: rebuilt[index][0] if index in rebuilt else agreed.chunk(index, stripe)
            for index in agreed.group.indexes(stripe)
            if index in rebuilt or index in agreed.shards
        }
        return is_stripe_checksum(agreed, stripe, chunks)


class _Draft:
    """A target's block as it grows."""

    def __init__(self, agreed: Agreed, index: int) -> None:
        self.chunks: list[ChunkInfo] = []
        self._block_id = agreed.block_id
        self._shard_bytes = agreed.group.shard_bytes(index)
        self._bcsid = Bcsid(max(block.bcsid for block in agreed.shards.values()))
        model = agreed.shards[min(agreed.shards)]
        metadata = group_metadata(model.metadata, agreed.group)
        if index == 1 or agreed.group.scheme.is_parity(index):
            metadata += stripe_metadata(agreed.stripe_checksums) + agreed.notes
        self._metadata = metadata

    @property
    def is_whole(self) -> bool:
        """Whether all of its chunks are here."""
        end = self.chunks[-1].end if self.chunks else 0
        return end == self._shard_bytes

    def block(self) -> BlockData:
        """Return the block as it is committed with its last chunk."""
        return BlockData(self._block_id, self._bcsid, tuple(self.chunks), self._metadata)
