"""What a client does: write files as blocks to all replicas, read them back from any.

    file ──► key ──► blocks, each in one container ──► chunks, each to every replica at once

A writer's session has containers of its own, so commits reach every replica in the order of their
commit ids (BCSID). A replica that fails is left behind: the write goes on with the others while a
majority lives, the SCM is told, and reconcile catches the replica up later. The reader trusts
nobody: every window of every chunk is checked, and a bad replica costs one retry with the next.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import grpc

from agent.errors import Code, Refused, SutureError, Unavailable
from agent.rpc import codec
from agent.rpc.errors import error_from
from agent.rpc.peer import Peer
from agent.rpc.scm import ScmClient
from agent.rpc.v1 import container_pb2, datanode_pb2, datanode_pb2_grpc, scm_pb2
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

LANES_DEFAULT: Final = 4  # writer sessions side by side, each with its own container
ALLOCATION_BATCH: Final = 32  # blocks asked of the SCM at once
BLOCK_BYTES_DEFAULT: Final = 16 * 1024**2  # a longer file becomes several blocks
WRITE_TIMEOUT_S: Final = 60.0
ATTEMPTS_MAX: Final = 3  # containers tried for one block before the write fails

assert CHUNK_BYTES_DEFAULT <= BLOCK_BYTES_DEFAULT


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


class LeftBehind(Exception):
    """Too few replicas of this container still take writes; try another container."""


class Lane:
    """One writer session: writes blocks one after the other, each to all its replicas at once."""

    def __init__(self, scm: ScmClient, dial: Callable[[str], datanode_pb2_grpc.DatanodeStub]):
        self.client_id = uuid.uuid4().hex
        self.failed: dict[tuple[int, str], str] = {}  # (container, datanode) -> why
        self._created: set[tuple[int, str]] = set()
        self._scm = scm
        self._dial = dial

    def put(self, sources: Sequence[Source], *, replace: bool) -> list[Stored]:
        """Store `sources` and commit their keys in one step; all or a clear error."""
        pieces = [(source, size) for source in sources for size in piece_sizes(source.size_bytes)]
        allocated = self._allocate([size for _, size in pieces])
        stored: list[Stored] = []
        at = 0
        for source in sources:
            count = len(piece_sizes(source.size_bytes))
            stored.append(self._put_file(source, allocated[at : at + count]))
            at += count
        self._commit(stored, replace=replace)
        return stored

    def finish(self, *, close: bool) -> None:
        """End the session; with `close`, its containers are closed now."""
        self._scm.finish_writes(scm_pb2.FinishWritesRequest(client_id=self.client_id, close=close))

    def _allocate(self, sizes: list[int]) -> list[scm_pb2.BlockAllocation]:
        answer = self._scm.allocate_blocks(
            scm_pb2.AllocateBlocksRequest(client_id=self.client_id, sizes=sizes)
        )
        return list(answer.blocks)

    def _commit(self, stored: list[Stored], *, replace: bool) -> None:
        keys = [
            scm_pb2.KeyInfo(key=item.key, size=item.size_bytes, blocks=item.blocks)
            for item in stored
        ]
        failed = [
            scm_pb2.FailedReplica(container_id=container_id, datanode_id=datanode_id)
            for container_id, datanode_id in self.failed
        ]
        self._scm.commit_key(
            scm_pb2.CommitKeyRequest(
                client_id=self.client_id, keys=keys, replace=replace, failed=failed
            )
        )

    def _put_file(self, source: Source, blocks: list[scm_pb2.BlockAllocation]) -> Stored:
        locations: list[scm_pb2.BlockLocation] = []
        replicas_min = 2**31
        with source.path.open("rb") as file:
            for part, (allocation, size) in enumerate(
                zip(blocks, piece_sizes(source.size_bytes), strict=True)
            ):
                start = part * BLOCK_BYTES_DEFAULT
                used, living = self._put_block(source, part, file, start, size, allocation)
                locations.append(scm_pb2.BlockLocation(block_id=used.block_id, length=size))
                replicas_min = min(replicas_min, living)
        return Stored(source.key, source.size_bytes, tuple(locations), replicas_min)

    def _put_block(
        self,
        source: Source,
        part: int,
        file: BinaryIO,
        start: int,
        size: int,
        allocation: scm_pb2.BlockAllocation,
    ) -> tuple[scm_pb2.BlockAllocation, int]:
        """Write one block; on too few replicas take another container, a few times."""
        metadata = (("key", source.key), ("part", str(part)))
        why = ""
        for _ in range(ATTEMPTS_MAX):
            file.seek(start)
            try:
                return allocation, self._write_replicas(file, size, metadata, allocation)
            except LeftBehind as left:
                why = str(left)
                self._tell_failed()
                [allocation] = self._allocate([size])
        raise Unavailable(Code.NOT_ENOUGH_NODES, f"cannot store {source.key}: {why}")

    def _tell_failed(self) -> None:
        """Tell the SCM at once, so that it allocates elsewhere."""
        self._commit([], replace=False)

    def _write_replicas(
        self,
        file: BinaryIO,
        size: int,
        metadata: tuple[tuple[str, str], ...],
        allocation: scm_pb2.BlockAllocation,
    ) -> int:
        """Write the block to every living replica; return how many hold it durably."""
        container_id = allocation.block_id.container_id
        stubs = self._living(allocation)
        majority = len(allocation.replicas) // 2 + 1
        chunks: list[ChunkInfo] = []
        for data in pieces_of(file, size):
            offset = chunks[-1].end if chunks else 0
            chunks.append(describe(offset, data))
            last = chunks[-1].end == size
            request = datanode_pb2.WriteChunkRequest(
                block_id=allocation.block_id, chunk=codec.chunk_message(chunks[-1]), data=data
            )
            if last:
                request.commit.CopyFrom(commit_message(allocation, chunks, metadata))
            self._fan_out(container_id, stubs, "WriteChunk", request, majority)
        if not chunks:
            put = datanode_pb2.PutBlockRequest(block=commit_message(allocation, [], metadata))
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


def piece_sizes(size_bytes: int) -> list[int]:
    """Sizes of the blocks that a file of `size_bytes` becomes; an empty file is one empty block."""
    whole, rest = divmod(size_bytes, BLOCK_BYTES_DEFAULT)
    return [BLOCK_BYTES_DEFAULT] * whole + ([rest] if rest or not whole else [])


def pieces_of(file: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """Yield `size_bytes` from `file` in chunks; refuse a file that shrank meanwhile."""
    left = size_bytes
    while left:
        data = file.read(min(left, CHUNK_BYTES_DEFAULT))
        if not data:
            raise Refused(
                Code.INVALID_WRITE_SIZE,
                f"{file.name} is {left} bytes shorter than it was when the write began",
            )
        left -= len(data)
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
    metadata: tuple[tuple[str, str], ...],
) -> container_pb2.BlockData:
    """Return the block as the commit carries it."""
    block = BlockData(
        BlockId(allocation.block_id.local_id),
        Bcsid(allocation.block_id.bcsid),
        tuple(chunks),
        metadata,
    )
    return codec.block_message(ContainerId(allocation.block_id.container_id), block)


class Client:
    """Stores and fetches keys through one SCM. Use as a context manager."""

    def __init__(self, scm_address: str) -> None:
        self.scm = ScmClient(scm_address)
        self._peers: dict[str, Peer] = {}

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        for peer in self._peers.values():
            peer.close()
        self.scm.close()

    def put(
        self,
        sources: Sequence[Source],
        *,
        lanes: int = LANES_DEFAULT,
        replace: bool = False,
        close: bool = False,
        progress: Callable[[Stored], None] = lambda _: None,
    ) -> tuple[list[Stored], list[int]]:
        """Store every source; return what is stored, and the containers that hold it.

        `close` asks the SCM to close those containers. The first failure stops the rest and is
        raised; keys committed before it stay stored.
        """
        shares = balanced(sources, max(1, min(lanes, len(sources))))
        sessions = [Lane(self.scm, self._dial) for _ in shares]
        with ThreadPoolExecutor(len(sessions) or 1, thread_name_prefix="put") as pool:
            futures = [
                pool.submit(put_share, session, share, replace, progress)
                for session, share in zip(sessions, shares, strict=True)
            ]
            results = [future.result() for future in futures]
        for session in sessions:
            session.finish(close=close)
        stored = [item for result in results for item in result]
        return stored, sorted({b.block_id.container_id for item in stored for b in item.blocks})

    def get(self, key: str, *, datanode_id: str | None = None) -> Iterator[bytes]:
        """Yield the bytes of `key`, every window verified.

        With `datanode_id` only that replica is read; else a replica that fails or lies is
        replaced by the next, without a byte of it having been yielded.
        """
        answer = self.scm.lookup_key(scm_pb2.LookupKeyRequest(key=key))
        replicas = {item.container_id: list(item.replicas) for item in answer.containers}
        for location in answer.key.blocks:
            container_id = location.block_id.container_id
            candidates = [
                replica
                for replica in replicas.get(container_id, [])
                if datanode_id in (None, replica.datanode_id)
            ]
            yield from self._read_block(key, location, candidates)

    def peer(self, address: str) -> Peer:
        """Return the connection to the datanode at `address`, made on first use."""
        if address not in self._peers:
            self._peers[address] = Peer(address)
        return self._peers[address]

    def _read_block(
        self,
        key: str,
        location: scm_pb2.BlockLocation,
        candidates: Iterable[container_pb2.DatanodeEndpoint],
    ) -> Iterator[bytes]:
        container_id = ContainerId(location.block_id.container_id)
        block_id = BlockId(location.block_id.local_id)
        at = 0
        reasons: list[str] = []
        for replica in candidates:
            try:
                peer = self.peer(replica.address)
                for chunk in peer.block(container_id, block_id).chunks:
                    if chunk.offset < at:
                        continue  # yielded already, from a replica that failed later
                    _, data = peer.read_chunk(container_id, block_id, chunk.offset)
                    at = chunk.end
                    yield data
            except SutureError as error:
                reasons.append(f"{replica.datanode_id}: {error}")
                continue
            if at == location.length:
                return
            reasons.append(f"{replica.datanode_id}: has {at} of {location.length} bytes")
        raise Unavailable(
            Code.UNAVAILABLE,
            f"no replica gives block {block_id} of container {container_id} for {key}: "
            + ("; ".join(reasons) or "no replica is known"),
        )

    def _dial(self, address: str) -> datanode_pb2_grpc.DatanodeStub:
        return self.peer(address).stub


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
    session: Lane, share: list[Source], replace: bool, progress: Callable[[Stored], None]
) -> list[Stored]:
    """Store one session's share, batch by batch."""
    stored: list[Stored] = []
    for start in range(0, len(share), ALLOCATION_BATCH):
        for item in session.put(share[start : start + ALLOCATION_BATCH], replace=replace):
            stored.append(item)
            progress(item)
    return stored
