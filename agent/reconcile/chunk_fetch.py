"""Chunks that a repair fetches, and the state of their blocks."""

from dataclasses import dataclass, field

from agent.plan.actions import RepairBlock, WantedChunk
from agent.reconcile.fetch import FetchResult
from merkle.replica import ChunkInfo


@dataclass(slots=True)
class BlockRepair:
    """State of one block that is being repaired.

    `action` is the planned repair. `described` has the block's metadata from a peer.
    """

    action: RepairBlock
    described: FetchResult
    waiting_count: int = 0  # chunks that are being fetched
    failed_count: int = 0
    is_drawn: bool = False  # all of its chunks are being fetched, or done
    lent: dict[int, ChunkInfo] = field(init=False)  # the peer's chunks, by offset

    def __post_init__(self) -> None:
        block = self.described.block
        self.lent = {chunk.offset: chunk for chunk in block.chunks} if block is not None else {}


@dataclass(frozen=True, slots=True, eq=False)
class ChunkFetch:
    """A chunk to fetch.

    `described` is the peer's record of the chunk, or None if that record is not of the wanted
    version.
    """

    block: BlockRepair
    wanted: WantedChunk
    described: ChunkInfo | None

    def size_bytes(self) -> int:
        """Return the number of bytes of memory that the fetch needs."""
        return self.wanted.leaf.length_bytes
