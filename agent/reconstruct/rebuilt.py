"""One chunk of a shard as the other shards make it, held against the row that its writer left.

The row here has the last word. Where the shards that answered first make something else, one of
them may be wrong although its own checksums fit it: every set that is large enough is tried, and
what fits the row is what was written. If no set does, the shards and the row contradict each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from agent.ec.blockgroup import Agreed
from agent.ec.cell_codec import padded, rebuild, rebuild_checked
from agent.errors import Code, Refused
from agent.reconstruct.sources import Sources
from merkle.checksum import windows_verify
from merkle.replica import ChunkInfo

Cells = Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What shards make of a chunk: its bytes, and whether they are what the row here says.

    `makers` are the datanodes whose cells were read, by index.
    """

    data: bytes
    fits: bool
    makers: tuple[str, ...]


def rebuilt_chunk(sources: Sources, agreed: Agreed, index: int, chunk: ChunkInfo) -> Rebuilt:
    """Return a chunk of shard `index` as the other shards make it.

    Raises Refused when the chunk is no cell of its group, or this host computes wrongly;
    Unavailable when too few cells can be read.
    """
    stripe, rest_bytes = divmod(chunk.offset, sources.scheme.cell_bytes)
    if rest_bytes or chunk.length_bytes != agreed.group.cell_bytes(stripe, index):
        raise Refused(
            Code.INELIGIBLE,
            f"block {agreed.block_id}: the chunk at {chunk.offset} is no cell of its group",
        )
    cells: Cells = sources.finish(agreed, sources.begin(agreed, stripe))
    data = _proven(sources, agreed, index, chunk, cells)
    if fits_row(chunk, data):
        return Rebuilt(data, fits=True, makers=_names(sources, cells))
    everyone = sources.begin(agreed, stripe, count=sources.scheme.shard_count)
    cells = sources.finish_all(agreed, everyone)
    right = _right_set(sources, agreed, index, chunk, cells)
    if not right:
        return Rebuilt(data, fits=False, makers=_names(sources, cells))
    chosen = {one: cells[one] for one in right}
    _accuse_others(sources, agreed, stripe, cells, chosen)
    data = _proven(sources, agreed, index, chunk, chosen)
    return Rebuilt(data, fits=fits_row(chunk, data), makers=_names(sources, chosen))


def fits_row(chunk: ChunkInfo, data: bytes) -> bool:
    """Whether these bytes are what the row of the chunk says was written."""
    return windows_verify(
        chunk.checksum_type, chunk.bytes_per_checksum, chunk.window_checksums, data
    )


def _right_set(
    sources: Sources, agreed: Agreed, index: int, chunk: ChunkInfo, cells: Cells
) -> tuple[int, ...]:
    """Return shards that make what the row says; none if no set of them does."""
    length_bytes = agreed.group.cell_bytes_max(chunk.offset // sources.scheme.cell_bytes)
    for chosen in combinations(sorted(cells), sources.scheme.data_count):
        some = {one: cells[one] for one in chosen}
        made = rebuild(sources.scheme, some, [index], length_bytes)[index]
        if fits_row(chunk, made[: chunk.length_bytes].tobytes()):
            return chosen
    return ()


def _proven(sources: Sources, agreed: Agreed, index: int, chunk: ChunkInfo, cells: Cells) -> bytes:
    """Return the chunk as these cells make it, proven by the way back."""
    length_bytes = agreed.group.cell_bytes_max(chunk.offset // sources.scheme.cell_bytes)
    octets = rebuild_checked(sources.scheme, cells, [index], length_bytes)[index]
    return octets[: chunk.length_bytes].tobytes()


def _accuse_others(
    sources: Sources, agreed: Agreed, stripe: int, cells: Cells, right: Cells
) -> None:
    """Note which of the other shards are wrong: they are asked later for what comes next."""
    others: Sequence[int] = [one for one in cells if cells[one] and one not in right]
    length_bytes = agreed.group.cell_bytes_max(stripe)
    made = rebuild(sources.scheme, right, others, length_bytes)
    for one in others:
        if not np.array_equal(made[one], padded(cells[one], length_bytes)):
            where = f"block {agreed.block_id}, stripe {stripe}"
            sources.accuse(one, f"{where}: its cell is wrong, its checksums fit it")


def _names(sources: Sources, cells: Cells) -> tuple[str, ...]:
    """Return the datanodes that these cells come from; empty cells come from nobody."""
    living = sources.living
    return tuple(
        f"{living[one].shard.datanode_id} (shard {one})"
        for one in sorted(cells)
        if cells[one] and one in living
    )
