"""What a repair has to fetch: chunks of blocks."""

from dataclasses import dataclass, field

from agent.plan.actions import RepairBlock, WantedChunk
from agent.reconcile.fetch import Answer
from merkle.replica import ChunkInfo


@dataclass(slots=True)
class BlockRun:
    """One block under repair."""

    action: RepairBlock
    described: Answer
    waiting_count: int = 0  # chunks that are being fetched
    failed_count: int = 0
    is_drawn: bool = False  # all of its chunks were looked at
    lent: dict[int, ChunkInfo] = field(init=False)  # its chunks at its lender, by offset

    def __post_init__(self) -> None:
        block = self.described.block
        self.lent = {chunk.offset: chunk for chunk in block.chunks} if block is not None else {}


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One chunk to get. `described`: as its lender describes it, if that is the version we want."""

    block: BlockRun
    wanted: WantedChunk
    described: ChunkInfo | None

    def size_bytes(self) -> int:
        """What it holds in memory while it is under way."""
        return self.wanted.leaf.length_bytes
