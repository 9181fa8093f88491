"""Writes files as blocks: each chunk to every replica at once, acknowledged when durable.

    file ──► pieces, one block each ──► chunks, each to every replica at once ──► keys committed

A writer's session has containers of its own, so commits reach every replica in the order of their
commit ids (BCSID). A replica that fails is left behind: the write goes on with the others while a
majority lives, the SCM is told, and reconcile catches the replica up later.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import grpc

from agent.errors import Code, Refused, SutureError, Unavailable
from agent.rpc.calls.channel import patient
from agent.rpc.calls.scm import ScmClient
from agent.rpc.v1 import container_pb2, datanode_pb2, datanode_pb2_grpc, scm_pb2
from agent.rpc.wire import codec
from agent.rpc.wire.errors import error_from
from merkle.checksum import window_checksums
from merkle.replica import (
    CHUNK_BYTES_DEFAULT,
    WINDOW_BYTES_DEFAULT,
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
)

ALLOCATION_BATCH: Final = 32  # files whose blocks are asked of the SCM at once
BLOCK_BYTES_DEFAULT: Final = 16 * 1024**2  # a longer file becomes several blocks
WRITE_TIMEOUT_S: Final = 60.0
ATTEMPTS_MAX: Final = 3  # containers tried for one block before the write fails

assert CHUNK_BYTES_DEFAULT <= BLOCK_BYTES_DEFAULT

Metadata = tuple[tuple[str, str], ...]
Waits = Callable[[SutureError], None]  # hears why a writer waits for the control plane
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source:
    """One file to store, under its key."""

    key: str
    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Stored:
    """One file that is stored: durable on `replicas_min` datanodes or more."""

    key: str
    size_bytes: int
    blocks: tuple[scm_pb2.BlockLocation, ...]
    replicas_min: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file that becomes one block, or one block group: from `offset` on."""

    source: Source
    part: int
    size_bytes: int
    offset: int = 0

    @property
    def metadata(self) -> Metadata:
        """What the block says of itself."""
        return ("key", self.source.key), ("part", str(self.part))


class LeftBehind(Exception):
    """Too few replicas of this container still take writes; try another container."""


class WriterSession:
    """One writer session: writes blocks one after the other, each to all its replicas at once."""

    scheme = ""  # of the containers; the erasure code's name in `agent.client.ecwriter`
    block_bytes = BLOCK_BYTES_DEFAULT

    def __init__(
        self,
        scm: ScmClient,
        dial: Callable[[str], datanode_pb2_grpc.DatanodeStub],
        wrote: Callable[[int], None] = lambda _: None,
        waits: Waits = lambda _: None,
    ) -> None:
        """Begin a session; `wrote` hears of the bytes of each chunk that is durable, `waits` of
        what the control plane answers while it starts."""
        self.client_id = uuid.uuid4().hex
        self.stopped = False  # set from outside: the session ends before its next chunk
        self.failed: dict[tuple[int, str], str] = {}  # (container, datanode) -> why
        self._created: set[tuple[int, str]] = set()
        self._scm = scm
        self._dial = dial
        self._wrote = wrote
        self._waits = waits
        self._was_heard = False  # the control plane: if it is silent now, it is being restarted

    def put(self, sources: Sequence[Source], *, replace: bool) -> list[Stored]:
        """Store `sources` and commit their keys in one step; all or a clear error."""
        pieces = [piece for source in sources for piece in pieces_of(source, self.block_bytes)]
        new = () if replace else tuple(source.key for source in sources)
        allocations = self._allocate([piece.size_bytes for piece in pieces], new)
        written: dict[str, list[tuple[scm_pb2.BlockLocation, int]]] = {}
        for piece, allocation in zip(pieces, allocations, strict=True):
            location = self._put_piece(piece, allocation)
            written.setdefault(piece.source.key, []).append(location)
        stored = [
            Stored(
                source.key,
                source.size_bytes,
                tuple(location for location, _ in written[source.key]),
                min(living for _, living in written[source.key]),
            )
            for source in sources
        ]
        self._commit(stored, replace=replace)
        return stored

    def finish(self, *, close: bool, is_patient: bool = False) -> None:
        """End the session; with `close`, its containers are closed now. One that `is_patient`
        waits for a control plane that is being restarted."""
        request = scm_pb2.FinishWritesRequest(client_id=self.client_id, close=close)
        self._ask(lambda: self._scm.finish_writes(request), must_end=lambda: not is_patient)

    def _allocate(
        self, sizes: list[int], new_keys: Sequence[str] = ()
    ) -> list[scm_pb2.BlockAllocation]:
        """Get blocks; a new key they are for that exists is refused before any byte moves."""
        request = scm_pb2.AllocateBlocksRequest(
            client_id=self.client_id, sizes=sizes, keys=new_keys, scheme=self.scheme
        )
        return list(self._ask(lambda: self._scm.allocate_blocks(request)).blocks)

    def _commit(self, stored: list[Stored], *, replace: bool) -> None:
        keys = [
            scm_pb2.KeyInfo(key=item.key, size=item.size_bytes, blocks=item.blocks)
            for item in stored
        ]
        failed = [
            scm_pb2.FailedReplica(container_id=container_id, datanode_id=datanode_id)
            for container_id, datanode_id in self.failed
        ]
        request = scm_pb2.CommitKeyRequest(
            client_id=self.client_id, keys=keys, replace=replace, failed=failed
        )
        self._ask(lambda: self._scm.commit_key(request))

    def _ask(self, work: Callable[[], T], *, must_end: Callable[[], bool] | None = None) -> T:
        """Ask the control plane; wait while it starts, and when it has answered before, while it
        is away. What is asked of it here may be asked twice."""
        codes = {Code.SAFE_MODE, Code.UNAVAILABLE} if self._was_heard else {Code.SAFE_MODE}
        ends = must_end or (lambda: self.stopped)
        answer = patient(work, codes=codes, must_end=ends, waits=self._waits)
        self._was_heard = True
        return answer

    def _put_piece(
        self, piece: Piece, allocation: scm_pb2.BlockAllocation
    ) -> tuple[scm_pb2.BlockLocation, int]:
        """Write one block; on too few replicas take another container, a few times.

        Return where it is, and how many replicas hold it durably.
        """
        why = ""
        for _ in range(ATTEMPTS_MAX):
            try:
                living = self._write_replicas(piece, allocation)
            except LeftBehind as left:
                why = str(left)
                self._tell_failed()
                [allocation] = self._allocate([piece.size_bytes])
            else:
                location = scm_pb2.BlockLocation(
                    block_id=allocation.block_id, length=piece.size_bytes
                )
                return location, living
        raise Unavailable(Code.NOT_ENOUGH_NODES, f"cannot store {piece.source.key}: {why}")

    def _tell_failed(self) -> None:
        """Tell the SCM at once, so that it allocates elsewhere."""
        self._commit([], replace=False)

    def _write_replicas(self, piece: Piece, allocation: scm_pb2.BlockAllocation) -> int:
        """Write the block to every living replica; return how many hold it durably."""
        container_id = allocation.block_id.container_id
        stubs = self._living(allocation)
        majority = len(allocation.replicas) // 2 + 1
        chunks: list[ChunkInfo] = []
        for data in chunks_of(piece):
            if self.stopped:
                raise Unavailable(Code.CANCELLED, f"stopped before {piece.source.key} was stored")
            chunks.append(describe(chunks[-1].end if chunks else 0, data))
            request = datanode_pb2.WriteChunkRequest(
                block_id=allocation.block_id, chunk=codec.chunk_message(chunks[-1]), data=data
            )
            if chunks[-1].end == piece.size_bytes:
                request.commit.CopyFrom(commit_message(allocation, chunks, piece.metadata))
            self._fan_out(container_id, stubs, "WriteChunk", request, majority)
            self._wrote(len(data))
        if not chunks:
            block = commit_message(allocation, [], piece.metadata)
            put = datanode_pb2.PutBlockRequest(block=block)
            self._fan_out(container_id, stubs, "PutBlock", put, majority)
        return len(stubs)

    def _living(
        self, allocation: scm_pb2.BlockAllocation
    ) -> dict[str, datanode_pb2_grpc.DatanodeStub]:
        """Stubs of the replicas not left behind; each has the container."""
        container_id = allocation.block_id.container_id
        majority = len(allocation.replicas) // 2 + 1
        stubs = {
            replica.datanode_id: self._dial(replica.address)
            for replica in allocation.replicas
            if (container_id, replica.datanode_id) not in self.failed
        }
        fresh = {d: s for d, s in stubs.items() if (container_id, d) not in self._created}
        if fresh:
            create = datanode_pb2.CreateContainerRequest(container_id=container_id)
            before = set(fresh)
            self._fan_out(container_id, fresh, "CreateContainer", create, 0)
            self._created.update((container_id, datanode_id) for datanode_id in fresh)
            for datanode_id in before - set(fresh):
                del stubs[datanode_id]
        if len(stubs) < majority:
            raise LeftBehind(f"{len(stubs)} of {len(allocation.replicas)} replicas take writes")
        return stubs

    def _fan_out(
        self,
        container_id: int,
        stubs: dict[str, datanode_pb2_grpc.DatanodeStub],
        method: str,
        request: object,
        majority: int,
    ) -> None:
        """Call every stub at once; drop those that fail from `stubs`."""
        futures = {
            datanode_id: getattr(stub, method).future(request, timeout=WRITE_TIMEOUT_S)
            for datanode_id, stub in stubs.items()
        }
        for datanode_id, future in futures.items():
            try:
                future.result()
            except grpc.RpcError as error:
                self.failed[container_id, datanode_id] = str(error_from(error))
                del stubs[datanode_id]
        if len(stubs) < majority:
            reasons = [why for (c, _), why in self.failed.items() if c == container_id]
            raise LeftBehind("; ".join(reasons) or "no replica takes writes")


def pieces_of(source: Source, block_bytes: int = BLOCK_BYTES_DEFAULT) -> list[Piece]:
    """Return the pieces that a file becomes; an empty file is one empty piece."""
    whole, rest = divmod(source.size_bytes, block_bytes)
    sizes_bytes = [block_bytes] * whole + ([rest] if rest or not whole else [])
    return [
        Piece(source, part, size_bytes, part * block_bytes)
        for part, size_bytes in enumerate(sizes_bytes)
    ]


def chunks_of(piece: Piece, chunk_bytes: int = CHUNK_BYTES_DEFAULT) -> Iterator[bytes]:
    """Yield a piece's bytes, chunk by chunk; refuse a file that shrank meanwhile."""
    with piece.source.path.open("rb") as file:
        file.seek(piece.offset)
        left_bytes = piece.size_bytes
        while left_bytes:
            data = file.read(min(left_bytes, chunk_bytes))
            if not data:
                raise Refused(
                    Code.INVALID_WRITE_SIZE,
                    f"{piece.source.path} is {left_bytes} bytes shorter than when it was listed",
                )
            left_bytes -= len(data)
            yield data


def describe(offset: int, data: bytes) -> ChunkInfo:
    """Return the chunk's description with its window checksums."""
    return ChunkInfo(
        offset=offset,
        length_bytes=len(data),
        checksum_type=ChecksumType.CRC32C,
        bytes_per_checksum=WINDOW_BYTES_DEFAULT,
        window_checksums=window_checksums(ChecksumType.CRC32C, WINDOW_BYTES_DEFAULT, data),
    )


def commit_message(
    allocation: scm_pb2.BlockAllocation,
    chunks: list[ChunkInfo],
    metadata: Metadata,
) -> container_pb2.BlockData:
    """Return the block as the commit carries it."""
    block = BlockData(
        BlockId(allocation.block_id.local_id),
        Bcsid(allocation.block_id.bcsid),
        tuple(chunks),
        metadata,
    )
    return codec.block_message(ContainerId(allocation.block_id.container_id), block)


def balanced(sources: Sequence[Source], count: int) -> list[list[Source]]:
    """Deal `sources` to `count` shares of about equal bytes; larger files first."""
    shares: list[list[Source]] = [[] for _ in range(count)]
    loads = [0] * count
    for source in sorted(sources, key=lambda s: (-s.size_bytes, s.key)):
        lightest = loads.index(min(loads))
        shares[lightest].append(source)
        loads[lightest] += source.size_bytes + CHUNK_BYTES_DEFAULT // 64
    return [share for share in shares if share]


def put_share(
    session: WriterSession, share: list[Source], replace: bool, stored: list[Stored]
) -> None:
    """Store one session's share, batch by batch; what is stored is added to `stored`."""
    for start in range(0, len(share), ALLOCATION_BATCH):
        stored += session.put(share[start : start + ALLOCATION_BATCH], replace=replace)
