"""Reads a block from whichever replicas have it, chunk by chunk.

    chunk at 0       at 4 MiB        at 8 MiB
    dn1  good ->     damaged
    dn2              good ->         damaged
    dn3                              good ->

Where one replica fails, the others are asked for that chunk, each once; the one that answered is
asked first for the next. Nothing that did not verify is yielded. What a replica did wrong is no
reason to pass it over for another chunk, only to ask it later; one that does not answer at all is
given up for the block after a few tries, so that a dead host cannot cost a deadline a chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from agent.errors import Code, Refused, SutureError, Unavailable
from merkle.replica import BlockData, BlockId, ChunkInfo, ContainerId

SILENT_COUNT_MAX: Final = 3  # calls in a row without an answer; each is three tries already


class BlockSource(Protocol):
    """A datanode, as far as reading needs it: `agent.rpc.calls.peer.Peer` is one."""

    def block(self, container_id: ContainerId, block_id: BlockId, /) -> BlockData:
        """Return the block's metadata."""
        ...

    def read_chunk(
        self, container_id: ContainerId, block_id: BlockId, offset: int, /
    ) -> tuple[ChunkInfo, bytes]:
        """Return one chunk and its verified bytes."""
        ...


@dataclass(slots=True)
class Holder:
    """A datanode that should have a replica, and how it behaved in this block."""

    datanode_id: str
    source: BlockSource
    fault_count: int = 0
    silent_count: int = 0
    block: BlockData | None = None
    has_listed: bool = False
    refusal: str = ""  # why it cannot list the block; who said so is not asked again


@dataclass(frozen=True, slots=True)
class Place:
    """Which bytes are wanted, as messages name them."""

    container_id: ContainerId
    block_id: BlockId
    length_bytes: int
    key: str

    @property
    def text(self) -> str:
        """Name the block."""
        return f"block {self.block_id} of container {self.container_id} for {self.key}"


@dataclass(slots=True)
class BlockReader:
    """One pass over one block. `faults` says what each datanode did wrong, by its id."""

    place: Place
    holders: list[Holder]
    faults: dict[str, str] = field(default_factory=dict)

    def read(self) -> Iterator[bytes]:
        """Yield the block from its first byte to its last.

        Raises Unavailable at the first chunk that no replica gives: it names the block, the offset
        and what each replica said.
        """
        at = 0
        while at < self.place.length_bytes:
            data = self._bytes_from(at)
            at += len(data)
            yield data

    def _bytes_from(self, at: int) -> bytes:
        """Return the rest of a chunk that holds the byte at `at`, from the first that gives it."""
        said: list[str] = []
        for holder in sorted(self.holders, key=lambda one: one.fault_count):
            try:
                return self._chunk_of(holder, at)
            except SutureError as error:
                self._note(holder, error)
                said.append(f"{holder.datanode_id}: {error}")
        raise Unavailable(
            Code.UNAVAILABLE,
            f"no replica gives {self.place.text}, chunk at offset {at}: "
            + ("; ".join(said) or "no replica is known"),
            hint=f"`suture explain {self.place.container_id}` shows what each replica has",
            container_id=self.place.container_id,
            block_id=self.place.block_id,
            offset=at,
        )

    def _chunk_of(self, holder: Holder, at: int) -> bytes:
        if holder.silent_count >= SILENT_COUNT_MAX:
            raise Refused(Code.INELIGIBLE, "gave no answer, and is asked no more for this block")
        chunk = self._listed(holder, at)
        container_id, block_id = self.place.container_id, self.place.block_id
        served, data = holder.source.read_chunk(container_id, block_id, chunk.offset)
        if served != chunk:
            holder.block = None  # it may have been repaired in between: ask again what it has
            raise Refused(
                Code.CHECKSUM_MISMATCH, f"serves another chunk at {chunk.offset} than it listed"
            )
        holder.silent_count = 0
        return data[at - chunk.offset :]

    def _listed(self, holder: Holder, at: int) -> ChunkInfo:
        """Return the chunk in which this replica has the byte at `at`."""
        if holder.refusal:
            raise Refused(Code.INELIGIBLE, holder.refusal)
        if holder.block is None:
            holder.block = holder.source.block(self.place.container_id, self.place.block_id)
            holder.has_listed = True
        for chunk in holder.block.chunks:
            if chunk.offset <= at < chunk.end <= self.place.length_bytes:
                return chunk
        raise Refused(
            Code.UNABLE_TO_FIND_CHUNK,
            f"has {holder.block.length_bytes} of {self.place.length_bytes} bytes, no chunk at {at}",
        )

    def _note(self, holder: Holder, error: SutureError) -> None:
        """Remember what a holder did, so that those that behave are asked before it."""
        holder.fault_count += 1
        self.faults[holder.datanode_id] = str(error)
        if isinstance(error, Unavailable):
            holder.silent_count += 1
        elif not holder.has_listed:
            holder.refusal = str(error)
