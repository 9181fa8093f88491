"""Reads block groups: data cells where they are whole, the rest computed from the others.

Every cell is verified, and what is computed must fit the stripe checksum that the writer recorded,
where there is one. What was in the way is told: a group that is read degraded needs repair.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from agent.ec.blockgroup import Agreed, Orphan, agree, is_stripe_checksum
from agent.ec.codec import rebuild
from agent.ec.scheme import Scheme
from agent.errors import Code, Refused, Unavailable
from agent.reconstruct.order import Account, Shard
from agent.reconstruct.sources import Sources
from agent.rpc.peer import Peer
from agent.writer import describe
from merkle.replica import TREE_STATES, BlockId, ContainerId, ReplicaState

if TYPE_CHECKING:
    from agent.ports import Executor

READ_STATES: Final = TREE_STATES | {ReplicaState.OPEN, ReplicaState.CLOSING}
"""A client reads what was committed, whether its container is closed or not."""


class GroupReader:
    """Reads the groups of one container. `account.replaced` says what was in the way."""

    def __init__(
        self,
        container_id: ContainerId,
        scheme: Scheme,
        places: Iterable[tuple[str, str]],
        dial: Callable[[str], Peer],
        executor: "Executor",
    ) -> None:
        """`places`: the datanodes that may have a shard, each with its address."""
        self.account = Account()
        self._scheme = scheme
        self._sources = Sources(container_id, scheme, executor, self.account)
        shards = [Shard(datanode_id, address, 0) for datanode_id, address in places]
        self._sources.open(shards, dial, states=READ_STATES)

    @property
    def absent(self) -> tuple[int, ...]:
        """The shards that no datanode gives."""
        return tuple(sorted(set(self._scheme.indexes) - set(self._sources.living)))

    def read(self, block_id: BlockId, length_bytes: int) -> Iterator[bytes]:
        """Yield a group's data, stripe by stripe. Raises Unavailable when it cannot be had."""
        agreed = agree(self._scheme, block_id, self._sources.block(block_id))
        where = f"block group {block_id} of container {self._sources.container_id}"
        if isinstance(agreed, Orphan):
            raise Unavailable(Code.UNAVAILABLE, f"{where} cannot be read: {agreed.reason}")
        if agreed.group.length_bytes != length_bytes:
            raise Unavailable(
                Code.UNAVAILABLE,
                f"{where} has {agreed.group.length_bytes} bytes, {length_bytes} were stored",
            )
        for stripe, cells in self._sources.stripes(agreed, range(agreed.group.stripe_count)):
            yield from self._data_of(agreed, stripe, cells)

    def _data_of(self, agreed: Agreed, stripe: int, cells: dict[int, bytes]) -> Sequence[bytes]:
        group = agreed.group
        indexes = range(1, self._scheme.data_count + 1)
        absent = [i for i in indexes if i not in cells]
        if absent:
            made = rebuild(self._scheme, cells, absent, group.cell_bytes_max(stripe))
            for index, octets in made.items():
                cells[index] = octets[: group.cell_bytes(stripe, index)].tobytes()
            self._check(agreed, stripe, cells, absent)
        return [cells[index] for index in indexes]

    def _check(
        self, agreed: Agreed, stripe: int, cells: dict[int, bytes], computed: Sequence[int]
    ) -> None:
        """Raise Refused when what was computed does not fit the record of the stripe."""
        known = {
            i: agreed.chunk(i, stripe)
            for i in agreed.group.indexes(stripe)
            if i in agreed.shards and i not in computed
        }
        offset = stripe * self._scheme.cell_bytes
        known |= {i: describe(offset, cells[i]) for i in computed if cells[i]}
        if not is_stripe_checksum(agreed, stripe, known):
            raise Refused(
                Code.CHECKSUM_MISMATCH,
                f"block group {agreed.block_id} of container {self._sources.container_id}, "
                f"stripe {stripe}: what the shards make of it is not what its writer recorded",
                hint="a shard holds wrong bytes; `suture verify-parity` names it",
            )
