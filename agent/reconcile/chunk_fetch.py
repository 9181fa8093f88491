"""Jobs of a repair: chunks of blocks to fetch."""

from dataclasses import dataclass, field

from agent.plan.actions import RepairBlock, WantedChunk
from agent.reconcile.fetch import FetchResult
from merkle.replica import ChunkInfo


@dataclass(slots=True)
class BlockRepair:
    """State of one block under repair."""

    action: RepairBlock
    described: FetchResult
    waiting_count: int = 0  # chunks being fetched
    failed_count: int = 0
    is_drawn: bool = False  # all of its chunks were drawn
    lent: dict[int, ChunkInfo] = field(init=False)  # the lender's chunks, by offset

    def __post_init__(self) -> None:
        block = self.described.block
        self.lent = {chunk.offset: chunk for chunk in block.chunks} if block is not None else {}


@dataclass(frozen=True, slots=True, eq=False)
class ChunkFetch:
    """A chunk to fetch. `described` is its lender's description, if that is the wanted version."""

    block: BlockRepair
    wanted: WantedChunk
    described: ChunkInfo | None

    def size_bytes(self) -> int:
        """Memory that the job needs while it is in flight."""
        return self.wanted.leaf.length_bytes
