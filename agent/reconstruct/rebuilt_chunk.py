"""Computation of one chunk of a shard from the other shards, and its comparison with the local row.

The local row is the reference. If the computed chunk does not match the row, one of the other
shards may be wrong although it matches its own checksums. In this case, the cells of all shards are
read. If the chunk matches the row only when a certain shard is not used, that shard is wrong. If no
combination of shards gives a match, the shards and the row contradict each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from merkle.checksum import fits
from merkle.replica import ChunkInfo
from suture.client.stripes.stripe_sources import RebuildSources
from suture.ec.blockgroup import RebuildableGroup
from suture.ec.cell_codec import Cell, rebuild_checked
from suture.errors import Code, RefusedError

Cells = Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class RebuiltChunk:
    """A computed chunk. `fits` is True if its bytes match the local row.

    `makers` names the datanodes whose cells were used, in the order of shards.
    """

    data: bytes
    fits: bool
    makers: tuple[str, ...]


def rebuilt_chunk(
    sources: RebuildSources, agreed: RebuildableGroup, index: int, chunk: ChunkInfo
) -> RebuiltChunk:
    """Return a chunk of shard `index`, computed from the other shards.

    Raise RefusedError if the chunk is not exactly one cell of a stripe, or if a check shows that
    this host computes wrong results. Raise UnavailableError if too few cells are readable.
    """
    stripe, rest_bytes = divmod(chunk.offset, sources.scheme.cell_bytes)
    if rest_bytes or chunk.length_bytes != agreed.group.cell_bytes(stripe, index):
        raise RefusedError(
            Code.INELIGIBLE,
            f"block {agreed.block_id}: the chunk at {chunk.offset} is not a cell of its group",
        )

    def computed(cells: Cells) -> bytes:
        """Return the chunk computed from `cells`.

        The computation is verified: the used cells, computed back from the chunk, must be
        unchanged.
        """
        length_bytes = agreed.group.cell_bytes_max(stripe)
        octets = rebuild_checked(sources.scheme, cells, [index], length_bytes)[index]
        return octets[: chunk.length_bytes].tobytes()

    def matches_row(whole: Mapping[int, Cell]) -> bool:
        return fits(chunk, bytes(whole[index]), each=False)

    cells: Cells = sources.finish(sources.begin(agreed, stripe))
    data = computed(cells)
    if not matches_row({index: data}):
        verdict, cells = sources.judged(agreed, stripe, matches_row)
        if verdict.is_sure:
            data = computed(cells)
    return RebuiltChunk(data, matches_row({index: data}), _names(sources, cells))


def _names(sources: RebuildSources, cells: Cells) -> tuple[str, ...]:
    """Return texts that name the datanode and the shard of each cell.

    Empty cells are omitted, because they are not read from a datanode.
    """
    living = sources.live_sources
    return tuple(
        f"{living[one].shard.datanode_id} (shard {one})"
        for one in sorted(cells)
        if cells[one] and one in living
    )
