"""Chooses one record of each block of a container, from the records of its replicas."""

from dataclasses import dataclass, field

from merkle.replica import BlockData
from suture.client.put_metadata import SCHEME, PartBlock, part_of
from suture.ec.blockgroup import group_length_bytes, longest_of_enough
from suture.ec.scheme import Scheme, parse_scheme
from suture.errors import RefusedError


@dataclass(slots=True)
class BlockVote:
    """The blocks of one container, collected from the block records of several replicas.

    If two replicas have different records of a block, the record with the higher commit id is used,
    because a replica may have missed commits.
    """

    container_id: int
    shown: dict[int, BlockData] = field(default_factory=dict)
    holders: dict[int, set[int]] = field(default_factory=dict)  # by block, indexes of its replicas
    _lengths: dict[int, dict[int, int]] = field(default_factory=dict)  # of groups, by index

    def add(self, block: BlockData, index: int) -> None:
        """Add the record of a block in the replica with this shard index. The index is 0 if the
        replica is a complete copy."""
        block_id = block.block_id
        known = self.shown.get(block_id, block)
        self.shown[block_id] = max(known, block, key=lambda one: (one.bcsid, one.length_bytes))
        self.holders.setdefault(block_id, set()).add(index)
        length_bytes = group_length_bytes(block)
        if length_bytes is not None:
            of_index = self._lengths.setdefault(block_id, {})
            of_index[index] = max(of_index.get(index, 0), length_bytes)

    def scheme(self) -> Scheme | None:
        """Return the erasure code that the block records name. Return None if no record names
        one."""
        for block in self.shown.values():
            text = dict(block.metadata).get(SCHEME, "")
            try:
                if text:
                    return parse_scheme(text)
            except RefusedError:
                continue
        return None

    def length_bytes(self, block_id: int, scheme: Scheme | None, *, is_coded: bool) -> int:
        """Return how many bytes of the file a block has. If `is_coded` is True, the block is a
        block group, and the bytes of all its data shards are counted."""
        if not is_coded:
            return sum(chunk.length_bytes for chunk in self.shown[block_id].chunks)
        told = self._lengths.get(block_id, {0: 0}).values()
        return max(told) if scheme is None else longest_of_enough(scheme, told)

    def part(self, block_id: int, length_bytes: int) -> PartBlock | None:
        """Return the block as a part of a file. Return None if the block's metadata names no
        file."""
        block = self.shown[block_id]
        return part_of(
            dict(block.metadata),
            container_id=self.container_id,
            local_id=block_id,
            bcsid=block.bcsid,
            length_bytes=length_bytes,
        )
