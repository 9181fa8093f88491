"""A minimal datanode of Ozone over gRPC, which answers requests for its data as Ozone does.

`OzoneDatanode` serves `Served` containers from memory: rows and trees that Ozone wrote, and bytes.
It records its requests. It can lie, refuse, break the stream, or call a function of the test during
a call. `golden_peers` returns the two intact replicas of the damaged containers in the golden set.
Their rows and trees are Ozone's. Their bytes are generated with Java's random numbers, as the
client generated them.
"""

import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Self

import grpc
from rocksdict import AccessType, Options, Rdict

from ozone.clients.datanode_messages import ANSWER, REQUEST, XCEIVER, DatanodeCommand
from ozone.disk.messages import BLOCK_DATA, CHECKSUM_INFO
from tests.support.ozone.ozone_volumes import crc32c_of, each, lines

CONTAINER_NOT_FOUND, IO_EXCEPTION, NO_SUCH_BLOCK, UNSUPPORTED_REQUEST = 9, 10, 12, 2
PAYLOAD_BYTES_MAX = 32 * 1024**2


@dataclass
class Served:
    """A replica: serialized rows by block id, data by block id, the serialized tree, and Ozone's
    number of the replica's state."""

    rows: dict[int, bytes]
    data: dict[int, bytes]
    tree: bytes
    state: int = 4

    def flip(self, block_id: int, offset: int) -> None:
        """Damage a byte without changing the tree."""
        data = bytearray(self.data[block_id])
        data[offset] ^= 0x40
        self.data[block_id] = bytes(data)

    def forget(self, block_id: int) -> None:
        """Remove the row, the bytes and the tree entry of a block."""
        del self.rows[block_id], self.data[block_id]
        info = CHECKSUM_INFO.FromString(self.tree)
        kept = [block for block in info.tree.blocks if block.block_id != block_id]
        del info.tree.blocks[:]
        info.tree.blocks.extend(kept)
        sums = b"".join(struct.pack(">q", block.checksum) for block in kept)
        info.tree.checksum = crc32c_of(sums)
        self.tree = info.SerializeToString()

    def mark(self, container_id: int, block_id: int, offset: int) -> None:
        """Change the tree as Ozone's scan would for a damaged chunk."""
        info = CHECKSUM_INFO.FromString(self.tree)
        sums = b""
        for block in info.tree.blocks:
            for chunk in block.chunks:
                if (block.block_id, chunk.offset) == (block_id, offset):
                    chunk.matches, chunk.checksum = False, chunk.checksum ^ 1
            if not block.deleted:
                leaves = [chunk.checksum for chunk in block.chunks]
                packed = struct.pack(f">{1 + len(leaves)}q", block.block_id, *leaves)
                block.checksum = crc32c_of(packed)
            sums += struct.pack(">q", block.checksum)
        info.tree.checksum = crc32c_of(sums)
        assert info.container_id == container_id
        self.tree = info.SerializeToString()


@dataclass
class OzoneDatanode:
    """A server on a free port of this machine. `before` is called with each request. It returns the
    result code with which the server refuses the request, or 0. It may raise to break the stream.
    If `knows_trees` is False, the server acts as a datanode of Ozone before 2.1. Such a datanode
    cannot parse a request for a tree, and gRPC ends the stream with UNKNOWN and no text."""

    containers: dict[int, Served]
    knows_trees: bool = True
    before: Callable[[Any], int] = lambda _: 0
    asked: list[Any] = field(default_factory=list)
    stream_count: int = 0
    _server: grpc.Server = field(init=False)

    def __enter__(self) -> Self:
        self._server = grpc.server(
            ThreadPoolExecutor(16), options=[("grpc.max_send_message_length", PAYLOAD_BYTES_MAX)]
        )
        handlers = {"send": grpc.stream_stream_rpc_method_handler(self._serve)}
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(XCEIVER.full_name, handlers)]
        )
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """The address of the server."""
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Close all connections."""
        self._server.stop(0).wait()

    def commands(self) -> list[DatanodeCommand]:
        """The commands of the received requests, in order."""
        return [DatanodeCommand(request.command) for request in self.asked]

    def _serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self.stream_count += 1
        for data in requests:
            request = REQUEST.FromString(data)
            self.asked.append(request)
            if request.command == DatanodeCommand.GET_CONTAINER_CHECKSUM_INFO and (
                not self.knows_trees
            ):
                context.abort(grpc.StatusCode.UNKNOWN, "")
            result = self.before(request)
            if result < 0:
                context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
            yield self._answer(request, result).SerializeToString()

    def _answer(self, request: Any, result: int) -> Any:
        replica = self.containers.get(request.container_id)
        if replica is None or result:
            said = b"no such thing\n\tat some.java.Class"
            result = result or CONTAINER_NOT_FOUND
            return ANSWER(command=request.command, result=result, message=said)
        match request.command:
            case DatanodeCommand.READ_CONTAINER:
                data = {"container_id": request.container_id, "state": replica.state,
                        "used_bytes": sum(map(len, replica.data.values())),
                        "block_count": len(replica.rows)}  # fmt: skip
                body = {"read_container": {"container": data}}
            case DatanodeCommand.GET_CONTAINER_CHECKSUM_INFO:
                body = {"get_container_checksum_info": {"info": replica.tree}}
            case DatanodeCommand.LIST_BLOCK:
                return self._listed(request, replica)
            case _:
                return self._of_block(request, replica)
        return ANSWER(command=request.command, result=1, **body)

    def _listed(self, request: Any, replica: Served) -> Any:
        wish = request.list_block
        ids = sorted(replica.rows, key=str)
        if wish.HasField("start_local_id"):  # if the start is no block: an empty list, and success
            at = ids.index(wish.start_local_id) if wish.start_local_id in ids else len(ids)
            ids = ids[at:]
        rows = [replica.rows[one] for one in ids[: wish.count]]
        return ANSWER(command=request.command, result=1, list_block={"blocks": rows})

    def _of_block(self, request: Any, replica: Served) -> Any:
        is_read = request.command == DatanodeCommand.READ_CHUNK
        wish = request.read_chunk if is_read else request.get_block
        block_id = wish.block_id.local_id
        if block_id not in replica.rows:
            return ANSWER(command=request.command, result=NO_SUCH_BLOCK, message=b"no block")
        if not is_read:
            row = {"block": replica.rows[block_id]}
            return ANSWER(command=request.command, result=1, get_block=row)
        offset, length = wish.chunk.offset, wish.chunk.length
        data = replica.data.get(block_id)
        if data is None:
            return ANSWER(command=request.command, result=IO_EXCEPTION, message=b"no file")
        body = {"block_id": wish.block_id, "chunk": wish.chunk,
                "data": data[offset : offset + length]}  # fmt: skip
        return ANSWER(command=request.command, result=1, read_chunk=body)


def java_random(seed: int, length_bytes: int) -> bytes:
    """Return the bytes that java.util.Random(seed).nextBytes generates."""
    state = (seed ^ 0x5DEECE66D) & (1 << 48) - 1
    words = []
    for _ in range(-(-length_bytes // 4)):
        state = (state * 0x5DEECE66D + 0xB) & (1 << 48) - 1
        words.append(state >> 16 & 0xFFFFFFFF)
    return struct.pack(f"<{len(words)}I", *words)[:length_bytes]


# the block's number in the golden set -> the client's seed
SEEDS = {
    1: 1, 3: 3, 4: 4, 5: 100, 7: 102, 10: 105, 11: 106, 12: 107, 15: 110, 16: 111, 19: 8,
    2: 2, 6: 101, 8: 103, 9: 104, 13: 108, 14: 109, 18: 7, 20: 7, 21: 8, 22: 7, 23: 8, 24: 7,
    25: 8, 26: 9,
}  # fmt: skip
FIRST = 117883640217600000  # of the golden set's block ids


@cache
def original(block_id: int, length_bytes: int) -> bytes:
    """Return the bytes that the client wrote into a block of the golden set's containers 1, 2."""
    number = block_id - FIRST
    if number == 17:  # written in two flushes
        return b"A" * 40960 + b"B" * 100
    if number == 29:  # synced three times and never closed
        return java_random(12, 40960) + java_random(13, 100) + java_random(14, 50)
    return java_random(SEEDS[number], length_bytes)


def golden_peers(volumes: Path, *, table: str = "closed") -> list[dict[int, Served]]:
    """Return containers 1 and 2 of the two datanodes with intact replicas, by id. The table is
    "closed" for their state before Ozone's scan, or "scanned" for the state after the scan."""
    tails = _tails(volumes)
    peers: dict[int, dict[int, Served]] = {1: {}, 2: {}}
    for line in lines(volumes / f"{table}.jsonl"):
        if line["dn"] not in peers or line["container"] not in {1, 2}:
            continue
        rows, data = {}, {}
        for block in line["blocks"]:
            message = BLOCK_DATA.FromString(bytes.fromhex(block["proto"]))
            tail = tails.get(block["id"])
            if tail is not None:
                message.chunks.extend(tail.chunks)
                message.size += sum(chunk.length for chunk in tail.chunks)
            rows[block["id"]] = message.SerializeToString()
            data[block["id"]] = original(block["id"], sum(c.length for c in message.chunks))
        served = Served(rows, data, bytes.fromhex(line["tree"]))
        peers[line["dn"]][line["container"]] = served
    return [peers[1], peers[2]]


def served_from(data_dir: Path) -> dict[int, Served]:
    """Return the blocks of a volume of schema V3 that have both a row and a file; no trees."""
    (path,) = each(data_dir, "hdds/*/DS-*/container.db")
    chunks = {int(one.stem): one.read_bytes() for one in data_dir.rglob("*.block")}
    replicas: dict[int, Served] = {}
    for value in _table(path, "block_data"):
        block_id = BLOCK_DATA.FromString(value).block_id
        if block_id.local_id not in chunks:
            continue
        served = replicas.setdefault(block_id.container_id, Served({}, {}, b""))
        served.rows[block_id.local_id] = value
        served.data[block_id.local_id] = chunks[block_id.local_id]
    return replicas


def _table(path: Path, name: str) -> list[bytes]:
    """Return the values of a table of a database, opened read-only."""
    names = Rdict.list_cf(str(path))
    database = Rdict(
        str(path),
        Options(raw_mode=True),
        column_families={one: Options(raw_mode=True) for one in names},
        access_type=AccessType.secondary(f"{path}-looked-at"),
    )
    items = database.get_column_family(name).items()
    values = [value for key, value in items if b"#" not in key]
    database.close()
    return values


def _tails(volumes: Path) -> dict[int, Any]:
    """Return the last chunks that are only in the table `last_chunk_info`, by block."""
    (path,) = each(volumes / "dn0-damaged", "hdds/*/DS-*/container.db")
    messages = map(BLOCK_DATA.FromString, _table(path, "last_chunk_info"))
    return {message.block_id.local_id: message for message in messages}


@dataclass
class ReplayedDatanode(OzoneDatanode):
    """Returns the recorded answers of a real datanode to exactly the recorded requests."""

    answers: dict[bytes, bytes] = field(default_factory=dict)

    def _serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for data in requests:
            if data not in self.answers:
                context.abort(grpc.StatusCode.UNIMPLEMENTED, f"never asked: {data.hex()}")
            yield self.answers[data]
