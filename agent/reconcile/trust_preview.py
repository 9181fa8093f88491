"""Preview of the local changes if the data of one peer replaces the local data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from agent.plan.actions import AdoptTombstone, RepairBlock, RepairPlan
from merkle.replica import BlockId, ChunkInfo
from merkle.tree import Tree


@dataclass(frozen=True, slots=True)
class TrustedChange:
    """A chunk that would be installed or replaced, or a block that would be deleted."""

    block_id: BlockId
    offset: int
    length_bytes: int
    change: str  # install, replace, delete
    before: int = 0  # checksum of the local chunk; 0 if unknown
    after: int = 0


def changes_of(
    planned: RepairPlan, mine: Tree, rows: Mapping[BlockId, Sequence[ChunkInfo]]
) -> Iterator[TrustedChange]:
    """Yield the changes that a plan would make, each with its block and offset."""
    for action in planned.actions:
        if isinstance(action, AdoptTombstone):
            yield TrustedChange(action.block_id, 0, 0, "delete", after=action.checksum)
        elif isinstance(action, RepairBlock):
            here = {leaf.offset: leaf.checksum for leaf in mine.leaves(action.block_id)}
            recorded = {chunk.offset for chunk in rows.get(action.block_id, ())}
            for chunk in action.chunks:
                leaf = chunk.leaf
                is_there = leaf.offset in here or leaf.offset in recorded
                yield TrustedChange(
                    action.block_id,
                    leaf.offset,
                    leaf.length_bytes,
                    "replace" if is_there else "install",
                    here.get(leaf.offset, 0),
                    leaf.checksum,
                )


def fingerprint(changes: Iterable[TrustedChange]) -> int:
    """Return a number that identifies the set of changes in a preview.

    The number is never 0. In a request, 0 means that the operator has seen no preview.
    """
    value = 0
    for change in changes:
        value = crc32(repr(change).encode(), value)
    return value or 1
