"""Writes block groups: the data and parity cells of each stripe are sent to all shards at the same
time.

The writer divides a file into groups, and each group into stripes. It sends the cells of a stripe
to their shards, in one stream per shard. The last message of each stream has the commit of the
block. The keys are committed last.

If a shard fails, the writer writes the complete group again to another container, as Ozone does. If
it continued with fewer shards than the code has, the group would be degraded from the start. The
cells that were already written become orphans.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from merkle.replica import Bcsid, BlockData, BlockId, ChunkInfo, ContainerId
from suture.client.block_messages import Placed
from suture.client.fan_out import Open, ReplicaStream, call_until_accepted
from suture.client.file_pieces import FilePart, chunks_of, describe
from suture.client.writer import (
    WRITE_TIMEOUT_S,
    SessionState,
    Stream,
    TooFewWritableReplicas,
    Waits,
    WriterSession,
    failures_of,
)
from suture.ec.blockgroup import group_metadata, stripe_checksum, stripe_metadata
from suture.ec.cell_codec import encode
from suture.ec.geometry import BlockGroup
from suture.ec.scheme import Scheme
from suture.errors import SutureError
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.scm import ScmClient
from suture.wire.mapping import new_blocks_message
from suture.wire.mapping.rpc_services import Stub
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

SHARD_BYTES_DEFAULT: Final = 16 * 1024**2  # a longer file becomes several groups


class EcWriterSession(WriterSession):
    """A writer session that stores files in erasure-coded containers."""

    def __init__(
        self,
        scm: ScmClient,
        dial: Callable[[NodeAddress], Stub],
        stream: Stream,
        wrote: Callable[[int], None] = lambda _: None,
        waits: Waits = lambda _: None,
        *,
        scheme: Scheme,
        state: SessionState | None = None,
    ) -> None:
        """Begin a new session, or continue the session `state`. For the arguments see
        `WriterSession`."""
        super().__init__(scm, dial, stream, wrote, waits, state=state)
        self.scheme = str(scheme)
        cells_count = max(1, SHARD_BYTES_DEFAULT // scheme.cell_bytes)
        self.unit_bytes = scheme.stripe_bytes
        self.block_bytes = cells_count * scheme.stripe_bytes
        self._code = scheme

    def _runs(self, placed: Sequence[Placed]) -> list[list[Placed]]:
        return [[one] for one in placed]

    def _write_run(self, run: Sequence[Placed]) -> int:
        """Write one block group, with one stream to each shard. Return the number of shards."""
        [(piece, allocation)] = run
        container_id = ContainerId(allocation.block_id.container_id)
        if len(allocation.replicas) != self._code.shard_count:
            raise TooFewWritableReplicas(
                f"container {container_id} has {len(allocation.replicas)} datanodes for the "
                f"{self._code.shard_count} shards of {self._code}"
            )
        stubs = {
            index: self._dial(replica) for index, replica in enumerate(allocation.replicas, start=1)
        }
        names = {i: replica.datanode_id for i, replica in enumerate(allocation.replicas, start=1)}
        shards = _Shards(container_id, stubs, names, self.state.failed, self._check_stopped)
        if (container_id, names[1]) not in self.state.created:
            shards.create()
            self.state.created.add((container_id, names[1]))
        with self._taken_back():
            self._stream_group(piece, allocation, shards)
        return self._code.shard_count

    def _stream_group(
        self, piece: FilePart, allocation: scm_pb2.BlockAllocation, shards: "_Shards"
    ) -> None:
        """Write a block group, with one stream to each shard. Raise TooFewWritableReplicas if a
        shard fails."""
        opens = {
            index: self._stream(replica)
            for index, replica in enumerate(allocation.replicas, start=1)
        }
        stripe_count = piece.size_bytes // self._code.stripe_bytes
        before_bytes = self._told_bytes

        def call(indexes: Collection[int]) -> dict[int, SutureError]:
            self._abandon_blocks(before_bytes)
            with _Streams({index: opens[index] for index in indexes}, stripe_count) as streams:
                self._write_group(piece, allocation, streams)
                return streams.failures()

        shards.check(call_until_accepted(call, list(opens), self._check_stopped))

    def _write_group(
        self, piece: FilePart, allocation: scm_pb2.BlockAllocation, streams: "_Streams"
    ) -> None:
        group = BlockGroup(self._code, piece.size_bytes)
        chunks: dict[int, list[ChunkInfo]] = {index: [] for index in self._code.indexes}
        checksums: list[int] = []
        for stripe, data in enumerate(chunks_of(piece, self._code.stripe_bytes)):
            self._check_stopped(piece.source.key)
            cells = cells_of(group, stripe, data)
            described = {
                index: describe(stripe * self._code.cell_bytes, cell)
                for index, cell in cells.items()
            }
            streams.write(allocation.block_id, described, cells)
            for index, chunk in described.items():
                chunks[index].append(chunk)
            checksums.append(stripe_checksum([described[index] for index in sorted(described)]))
            self._tell(len(data))
        streams.commit(
            allocation.block_id,
            {
                index: BlockData(
                    BlockId(allocation.block_id.local_id),
                    Bcsid(allocation.block_id.bcsid),
                    tuple(chunks[index]),
                    group_metadata(piece.metadata, group)
                    + (stripe_metadata(checksums) if self._is_keeper(index) else ()),
                )
                for index in self._code.indexes
            },
        )

    def _is_keeper(self, index: int) -> bool:
        """Return True if the shard with this index stores the checksums of the stripes. As in
        Ozone, these are the first shard and the parity shards."""
        return index == 1 or self._code.is_parity(index)


def cells_of(group: BlockGroup, stripe: int, data: bytes) -> dict[int, bytes]:
    """Return the data and parity cells of a stripe, by shard index. Empty cells are omitted."""
    scheme = group.scheme
    view = memoryview(data)
    whole = [
        view[place * scheme.cell_bytes : (place + 1) * scheme.cell_bytes]
        for place in range(scheme.data_count)
    ]
    cells = dict(enumerate(map(bytes, whole), start=1))
    parity = encode(scheme, list(cells.values()))
    cells |= {i: octets.tobytes() for i, octets in enumerate(parity, scheme.data_count + 1)}
    assert all(len(cell) == group.cell_bytes(stripe, index) for index, cell in cells.items())
    return {index: cell for index, cell in cells.items() if cell}


@dataclass(eq=False)
class _Shards:
    """The datanodes of one container, by shard index."""

    container_id: ContainerId
    stubs: Mapping[int, Stub]
    names: Mapping[int, str]
    failed: dict[tuple[int, str], str]
    check_stopped: Callable[[], None]

    def create(self) -> None:
        """Create a replica of the container on the datanode of every shard."""
        self._each(
            "CreateContainer",
            {
                index: datanode_pb2.CreateContainerRequest(
                    container_id=self.container_id, replica_index=index
                )
                for index in self.stubs
            },
        )

    def _each(self, method: str, requests: Mapping[int, object]) -> None:
        """Call all datanodes at the same time. Raise TooFewWritableReplicas if a call fails."""

        def call(indexes: Collection[int]) -> dict[int, SutureError]:
            return failures_of({i: (getattr(self.stubs[i], method), requests[i]) for i in indexes})

        self.check(call_until_accepted(call, list(requests), self.check_stopped))

    def check(self, failures: Mapping[int, SutureError]) -> None:
        """Record the errors of failed shards. Raise TooFewWritableReplicas if a shard has
        failed."""
        reasons = []
        for index, error in failures.items():
            self.failed[self.container_id, self.names[index]] = str(error)
            reasons.append(f"shard {index} at {self.names[index]}: {error}")
        if reasons:
            raise TooFewWritableReplicas("; ".join(reasons))


class _Streams:
    """The streams to the shards of a block group, as a context manager. At its exit, streams that
    have not ended are cancelled."""

    def __init__(self, opens: Mapping[int, Open], message_count: int) -> None:
        self._lanes = {
            index: ReplicaStream(
                begin, message_timeout_s=WRITE_TIMEOUT_S, message_count=message_count + 2
            )
            for index, begin in opens.items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self._lanes.values():
            lane.cancel()  # no effect on a stream that has ended

    def write(
        self,
        block_id: container_pb2.BlockId,
        chunks: Mapping[int, ChunkInfo],
        cells: Mapping[int, bytes],
    ) -> None:
        """Queue the cells of one stripe for sending. Wait until there is room for them."""
        for index, lane in self._lanes.items():
            if index in chunks:
                block = new_blocks_message.new_block_message(
                    block_id, [chunks[index]], is_whole=False, metadata=()
                )
                lane.send(new_blocks_message.encode([block], [cells[index]]))

    def commit(self, block_id: container_pb2.BlockId, blocks: Mapping[int, BlockData]) -> None:
        """Send the commit of the block group. `failures` returns the result of the commit."""
        for index, lane in self._lanes.items():
            metadata = blocks[index].metadata
            last = new_blocks_message.new_block_message(
                block_id, (), is_whole=True, metadata=metadata
            )
            lane.send(new_blocks_message.encode([last], []))
            lane.send(None)

    def failures(self) -> dict[int, SutureError]:
        """Wait until the block group is durable on all shards. Return the errors of the failed
        shards, by index."""
        answers = {index: lane.failure() for index, lane in self._lanes.items()}
        return {index: error for index, error in answers.items() if error is not None}
