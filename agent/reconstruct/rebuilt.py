"""A chunk of a shard computed from the other shards, and compared with its own row.

The local row decides. If the shards that answered first give another result, one of them may be
wrong although it matches its own checksums. Then every sufficient set is tried, and a result that
matches the row is what was written. If no set matches, the shards and the row contradict each
other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from agent.ec.blockgroup import RebuildableGroup
from agent.ec.cell_codec import padded, rebuild, rebuild_checked
from agent.errors import Code, RefusedError
from agent.reconstruct.sources import RebuildSources
from merkle.checksum import windows_verify
from merkle.replica import ChunkInfo

Cells = Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class RebuiltChunk:
    """A computed chunk: its bytes, and whether they match the local row.

    `makers` are the datanodes whose cells were used, by index.
    """

    data: bytes
    fits: bool
    makers: tuple[str, ...]


def rebuilt_chunk(
    sources: RebuildSources, agreed: RebuildableGroup, index: int, chunk: ChunkInfo
) -> RebuiltChunk:
    """Return a chunk of shard `index`, computed from the other shards.

    Raise RefusedError if the chunk is no cell of its group, or this host computes wrongly;
    UnavailableError if too few cells can be read.
    """
    stripe, rest_bytes = divmod(chunk.offset, sources.scheme.cell_bytes)
    if rest_bytes or chunk.length_bytes != agreed.group.cell_bytes(stripe, index):
        raise RefusedError(
            Code.INELIGIBLE,
            f"block {agreed.block_id}: the chunk at {chunk.offset} is no cell of its group",
        )
    cells: Cells = sources.finish(agreed, sources.begin(agreed, stripe))
    data = _proven(sources, agreed, index, chunk, cells)
    if fits_row(chunk, data):
        return RebuiltChunk(data, fits=True, makers=_names(sources, cells))
    everyone = sources.begin(agreed, stripe, count=sources.scheme.shard_count)
    cells = sources.finish_all(agreed, everyone)
    right = _right_set(sources, agreed, index, chunk, cells)
    if not right:
        return RebuiltChunk(data, fits=False, makers=_names(sources, cells))
    chosen = {one: cells[one] for one in right}
    _accuse_others(sources, agreed, stripe, cells, chosen)
    data = _proven(sources, agreed, index, chunk, chosen)
    return RebuiltChunk(data, fits=fits_row(chunk, data), makers=_names(sources, chosen))


def fits_row(chunk: ChunkInfo, data: bytes) -> bool:
    """Return whether these bytes match the checksums in the chunk's row."""
    return windows_verify(
        chunk.checksum_type, chunk.bytes_per_checksum, chunk.window_checksums, data
    )


def _right_set(
    sources: RebuildSources, agreed: RebuildableGroup, index: int, chunk: ChunkInfo, cells: Cells
) -> tuple[int, ...]:
    """Return shards whose result matches the row; none if no set does."""
    length_bytes = agreed.group.cell_bytes_max(chunk.offset // sources.scheme.cell_bytes)
    for chosen in combinations(sorted(cells), sources.scheme.data_count):
        some = {one: cells[one] for one in chosen}
        made = rebuild(sources.scheme, some, [index], length_bytes)[index]
        if fits_row(chunk, made[: chunk.length_bytes].tobytes()):
            return chosen
    return ()


def _proven(
    sources: RebuildSources, agreed: RebuildableGroup, index: int, chunk: ChunkInfo, cells: Cells
) -> bytes:
    """Return the chunk computed from these cells, verified by the reverse computation."""
    length_bytes = agreed.group.cell_bytes_max(chunk.offset // sources.scheme.cell_bytes)
    octets = rebuild_checked(sources.scheme, cells, [index], length_bytes)[index]
    return octets[: chunk.length_bytes].tobytes()


def _accuse_others(
    sources: RebuildSources, agreed: RebuildableGroup, stripe: int, cells: Cells, right: Cells
) -> None:
    """Record which of the other shards are wrong, so that they are asked later from now on."""
    others: Sequence[int] = [one for one in cells if cells[one] and one not in right]
    length_bytes = agreed.group.cell_bytes_max(stripe)
    made = rebuild(sources.scheme, right, others, length_bytes)
    for one in others:
        if not np.array_equal(made[one], padded(cells[one], length_bytes)):
            where = f"block {agreed.block_id}, stripe {stripe}"
            sources.accuse(one, f"{where}: its cell is wrong, its checksums fit it")


def _names(sources: RebuildSources, cells: Cells) -> tuple[str, ...]:
    """Return the datanodes that these cells come from; empty cells come from none."""
    living = sources.living
    return tuple(
        f"{living[one].shard.datanode_id} (shard {one})"
        for one in sorted(cells)
        if cells[one] and one in living
    )
