"""Read block groups: intact data cells, and the others computed from the remaining cells.

Every cell is verified, and computed cells must match the stripe checksum that the writer recorded,
if there is one. Obstacles are reported, because a group that is read degraded needs repair.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from agent.ec.blockgroup import OrphanGroup, RebuildableGroup, is_stripe_checksum, resolve_group
from agent.ec.cell_codec import rebuild
from agent.ec.cells import described, style_of
from agent.ec.rebuild_task import RebuildStats, ShardLocation
from agent.ec.scheme import Scheme
from agent.errors import Code, UnavailableError
from agent.ports import Executor
from agent.reconstruct.sources import RebuildSources
from agent.rpc.calls.peer import NodeAddress, Peer
from merkle.replica import TREE_STATES, BlockId, ContainerId, ReplicaState

READ_STATES: Final = TREE_STATES | {ReplicaState.OPEN, ReplicaState.CLOSING}
"""A client reads committed blocks of open and closed containers."""


class GroupReader:
    """Reads the groups of one container. `account.replaced` describes the obstacles."""

    def __init__(
        self,
        container_id: ContainerId,
        scheme: Scheme,
        places: Iterable[NodeAddress],
        dial: Callable[[NodeAddress], Peer],
        executor: Executor,
    ) -> None:
        """`places` are the datanodes that may have a shard."""
        self.account = RebuildStats()
        self._scheme = scheme
        self._sources = RebuildSources(container_id, scheme, executor, self.account)
        shards = [ShardLocation(place.datanode_id, place.address, 0) for place in places]
        self._sources.open(shards, dial, states=READ_STATES)

    @property
    def absent(self) -> tuple[int, ...]:
        """Indexes of the shards that no datanode provides."""
        return tuple(sorted(set(self._scheme.indexes) - set(self._sources.living)))

    def read(
        self, block_id: BlockId, length_bytes: int, start: int = 0, stop: int | None = None
    ) -> Iterator[bytes]:
        """Yield a group's data from `start` to before `stop`; read only the stripes in that range.
        Raise UnavailableError if the data cannot be read."""
        agreed = resolve_group(self._scheme, block_id, self._sources.block(block_id))
        where = f"block group {block_id} of container {self._sources.container_id}"
        if isinstance(agreed, OrphanGroup):
            raise UnavailableError(Code.UNAVAILABLE, f"{where} cannot be read: {agreed.reason}")
        if agreed.group.length_bytes != length_bytes:
            raise UnavailableError(
                Code.UNAVAILABLE,
                f"{where} has {agreed.group.length_bytes} bytes, {length_bytes} were stored",
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
        self, agreed: RebuildableGroup, stripe: int, cells: dict[int, bytes]
    ) -> Sequence[bytes]:
        """Return the data cells; compute those that are missing."""
        computed = self._computed(agreed, stripe, cells)
        if not self._is_recorded(agreed, stripe, computed):
            cells = self._sources.without_the_wrong(agreed, stripe)
            computed = self._computed(agreed, stripe, cells)
        whole = cells | computed
        return [whole[index] for index in range(1, self._scheme.data_count + 1)]

    def _computed(
        self, agreed: RebuildableGroup, stripe: int, cells: dict[int, bytes]
    ) -> dict[int, bytes]:
        """Compute the missing data cells; with a recorded checksum, all cells that no shard
        lists."""
        group = agreed.group
        wanted = set(range(1, self._scheme.data_count + 1))
        if agreed.stripe_checksums:
            wanted |= set(group.indexes(stripe)) - set(agreed.shards)
        absent = sorted(wanted - set(cells))
        if not absent:
            return {}
        made = rebuild(self._scheme, cells, absent, group.cell_bytes_max(stripe))
        return {i: made[i][: group.cell_bytes(stripe, i)].tobytes() for i in absent}

    def _is_recorded(
        self, agreed: RebuildableGroup, stripe: int, computed: dict[int, bytes]
    ) -> bool:
        """Return whether a stripe matches its writer's record; True where no record decides.

        Cells that were read have the checksums that their shard lists; computed cells get new ones.
        """
        if not agreed.stripe_checksums:
            return True
        offset, style = stripe * self._scheme.cell_bytes, style_of(agreed, stripe)
        chunks = {
            index: described(offset, computed[index], style)
            if index in computed
            else agreed.chunk(index, stripe)
            for index in agreed.group.indexes(stripe)
        }
        return is_stripe_checksum(agreed, stripe, chunks)
