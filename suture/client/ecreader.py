"""Reads block groups: it reads the intact data cells and computes the missing ones.

The reader verifies every cell. If the writer recorded a checksum of the stripe, computed cells must
match it. The reader reports every unusable shard, because a group that cannot be read without
computation needs a repair.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from merkle.replica import TREE_STATES, BlockId, ContainerId, ReplicaState
from suture.client.stripes.cell_rebuild import CellRebuilder
from suture.client.stripes.stripe_sources import RebuildSources
from suture.ec.blockgroup import OrphanGroup, RebuildableGroup, resolve_group
from suture.ec.rebuild_task import RebuildStats, ShardLocation
from suture.ec.scheme import Scheme
from suture.errors import Code, UnavailableError
from suture.runtime.ports import Executor
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.peer import Peer
from suture.wire.mapping.blockpieces import Data

READ_STATES: Final = TREE_STATES | {ReplicaState.OPEN, ReplicaState.CLOSING}
"""States of the replicas that a client reads. They include OPEN and CLOSING, because committed
blocks of open containers are readable."""


class GroupReader:
    """Reads the block groups of one erasure-coded container. `account.replaced` has the reason for
    each unusable datanode, by datanode id."""

    def __init__(
        self,
        container_id: ContainerId,
        scheme: Scheme,
        places: Iterable[NodeAddress],
        dial: Callable[[NodeAddress], Peer],
        executor: Executor,
    ) -> None:
        """Find the shards of a container. `places` are the datanodes that may have one."""
        self.account = RebuildStats()
        self._scheme = scheme
        self._sources = RebuildSources(container_id, scheme, executor, self.account)
        self._rebuilder = CellRebuilder(self._sources, range(1, scheme.data_count + 1))
        shards = [ShardLocation(place.datanode_id, place.address, 0) for place in places]
        self._sources.open(shards, dial, states=READ_STATES)

    @property
    def absent(self) -> tuple[int, ...]:
        """Indexes of the shards that no datanode can provide."""
        return tuple(sorted(set(self._scheme.indexes) - set(self._sources.live_sources)))

    def read(
        self, block_id: BlockId, length_bytes: int, start: int = 0, stop: int | None = None
    ) -> Iterator[Data]:
        """Yield the data of a block group from `start` up to, but not including, `stop`.

        Only the stripes in that range are read. Raise UnavailableError if the data cannot be read.
        """
        agreed = resolve_group(self._scheme, block_id, self._sources.block(block_id))
        where = f"block group {block_id} of container {self._sources.container_id}"
        if isinstance(agreed, OrphanGroup):
            raise UnavailableError(Code.UNAVAILABLE, f"{where} cannot be read: {agreed.reason}")
        if agreed.group.length_bytes != length_bytes:
            raise UnavailableError(
                Code.UNAVAILABLE,
                f"{where} has {agreed.group.length_bytes} bytes, expected {length_bytes}",
            )
        end = length_bytes if stop is None else stop
        stripe_bytes = self._scheme.stripe_bytes
        wanted = range(start // stripe_bytes, -(-end // stripe_bytes))
        at = wanted.start * stripe_bytes
        for stripe, cells in self._sources.stripes(agreed, wanted):
            for data in self._data_of(agreed, stripe, cells):
                part = data[max(0, start - at) : max(0, end - at)]
                at += len(data)
                if part:
                    yield part

    def _data_of(
        self, agreed: RebuildableGroup, stripe: int, cells: Mapping[int, bytes]
    ) -> Sequence[Data]:
        """Return all data cells of a stripe, in the order of their indexes. Cells that are not in
        `cells` are computed."""
        cells, made = self._rebuilder.complete(agreed, stripe, cells)
        return [
            cells[index] if index in cells else made[index][1]
            for index in range(1, self._scheme.data_count + 1)
        ]
