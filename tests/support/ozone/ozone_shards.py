"""Datanodes of Ozone with shards of erasure-coded containers, which can be read and written.

Requests to write are parsed with Ozone's own messages, copied for tests (`ozone_wire`). A datanode
accepts the same requests as Ozone: they must be addressed to this datanode, and chunks can be
written only while the shard is RECOVERING.
"""

import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ozone.clients.datanode_messages import ANSWER
from suture.ec.cell_codec import encode
from suture.ec.scheme import RS_3_2, Scheme
from tests.support.ozone.ozone_datanode import (
    CONTAINER_NOT_FOUND,
    OzoneDatanode,
    Served,
    java_random,
)
from tests.support.ozone.ozone_volumes import CRC32, lines
from tests.support.ozone.ozone_wire import COMMANDS, WIRE

SUCCESS, CONTAINER_EXISTS, INVALID_ARGUMENT, CLOSED_CONTAINER_IO = 1, 7, 19, 22
RECOVERING, CLOSED = 8, 4
CELL_BYTES = 1024**2
GROUPS = {3: (20, 2 * CELL_BYTES + 12_345), 4: (21, 100)}
"""By id of an erasure-coded container of the golden set: the client's random seed, and the length
of its block group in bytes."""
MADE = 7
"""Id of the container with generated shards."""
WINDOW_BYTES = 1024
NAMES = {number: name for name, number in COMMANDS.items()}
OF_BLOCK = {"getBlock": "getBlock", "readChunk": "readChunk"}


def golden_shards(volumes: Path, container_id: int) -> dict[int, Served]:
    """Return the shards of a container of the golden set by index.

    The rows are Ozone's. The bytes are generated, and each must match the checksums in Ozone's row.
    """
    found = {}
    for line in lines(volumes / "closed.jsonl"):
        if line["container"] != container_id:
            continue
        (block,) = line["blocks"]
        row = bytes.fromhex(block["proto"])
        data = _cells(container_id)[line["index"] - 1]
        _check(row, data)
        tree = bytes.fromhex(line["tree"])
        found[line["index"]] = Served({block["id"]: row}, {block["id"]: data}, tree)
    return found


@cache
def _cells(container_id: int) -> list[bytes]:
    """Return the cells of a block group's only stripe: the client's data, then the parity."""
    seed, length_bytes = GROUPS[container_id]
    data = java_random(seed, length_bytes)
    cells = [data[at : at + CELL_BYTES] for at in range(0, 3 * CELL_BYTES, CELL_BYTES)]
    return [*cells, *(cell.tobytes() for cell in encode(RS_3_2, cells))]


def made_shards(scheme: Scheme, lengths: dict[int, int]) -> dict[int, Served]:
    """Return shards by index, as Ozone's client writes them. `lengths` has the length of each block
    group by block id. As in Ozone, the first shard and the parity shards also have the checksums of
    each stripe's cells."""
    made = {index: Served({}, {}, b"") for index in scheme.indexes}
    for block_id, length_bytes in lengths.items():
        data = java_random(block_id, length_bytes)
        rows = {index: _empty_row(block_id, index, length_bytes) for index in scheme.indexes}
        shards = dict.fromkeys(scheme.indexes, b"")
        for start in range(0, length_bytes, scheme.stripe_bytes):
            cells = _stripe(scheme, data[start : start + scheme.stripe_bytes])
            chunks = {i: rows[i].chunks.add() for i in scheme.indexes if cells[i]}
            for index, chunk in chunks.items():
                chunk.chunkName, chunk.len = f"{block_id}_chunk", len(cells[index])
                chunk.offset = len(shards[index])
                chunk.checksumData.type = CRC32
                chunk.checksumData.bytesPerChecksum = WINDOW_BYTES
                chunk.checksumData.checksums.extend(_sums(cells[index], WINDOW_BYTES))
                rows[index].size += len(cells[index])
                shards[index] += cells[index]
            stripe = b"".join(b"".join(one.checksumData.checksums) for one in chunks.values())
            for index, chunk in chunks.items():
                if index == 1 or scheme.is_parity(index):
                    chunk.stripeChecksum = stripe
        for index, served in made.items():
            served.rows[block_id] = rows[index].SerializeToString()
            served.data[block_id] = shards[index]
    return made


def _empty_row(block_id: int, index: int, length_bytes: int) -> Any:
    row = WIRE["BlockData"](size=0)
    row.blockID.containerID, row.blockID.localID, row.blockID.bcsid = MADE, block_id, 0
    row.blockID.replicaIndex = index
    row.metadata.add(key="TYPE", value="KEY")
    row.metadata.add(key="blockGroupLen", value=str(length_bytes))
    return row


def _stripe(scheme: Scheme, data: bytes) -> dict[int, bytes]:
    """Return the cells of one stripe by index."""
    cell_bytes = scheme.cell_bytes
    cells = [data[at * cell_bytes : (at + 1) * cell_bytes] for at in range(scheme.data_count)]
    parity = [cell.tobytes() for cell in encode(scheme, cells)]
    return dict(enumerate([*cells, *parity], start=1))


def _sums(data: bytes, step: int) -> list[bytes]:
    """Return the CRC-32 of each window of `step` bytes."""
    cuts = range(0, len(data), step)
    return [zlib.crc32(data[at : at + step]).to_bytes(4, "big") for at in cuts]


def _check(row: bytes, data: bytes) -> None:
    """Assert that the data has the CRC-32 checksums in Ozone's row."""
    message = WIRE["BlockData"].FromString(row)
    assert len(data) == sum(chunk.len for chunk in message.chunks)
    for chunk in message.chunks:
        assert CRC32 == chunk.checksumData.type
        step = chunk.checksumData.bytesPerChecksum
        assert _sums(data, step) == list(chunk.checksumData.checksums)


def comparable(row: Any) -> tuple[object, ...]:
    """Return the content of an Ozone row without the names of chunks, which no reader uses."""
    chunks = [
        (one.offset, one.len, one.checksumData.SerializeToString(), one.stripeChecksum)
        for one in row.chunks
    ]
    notes = {one.key: one.value for one in row.metadata}
    return (row.blockID.localID, row.blockID.replicaIndex, row.size, notes, chunks)


def row_of(data: bytes) -> tuple[object, ...]:
    """Return the comparable content of a serialized row."""
    return comparable(WIRE["BlockData"].FromString(data))


@dataclass
class ShardDatanode(OzoneDatanode):
    """A datanode that has, or receives, the shard with `index` of each of its containers."""

    uuid: str = ""
    index: int = 0
    full: bool = False
    """True if the datanode has no space for writes."""

    def told(self) -> list[str]:
        """Return Ozone's names of the commands in the received requests, in order."""
        return [NAMES[request.command] for request in self.asked]

    def details(self) -> dict[str, Any]:
        """Return the description of this datanode as Ozone's SCM would send it."""
        ports = [{"name": "REPLICATION", "value": 1}, {"name": "STANDALONE", "value": self.port}]
        return {"uuid": self.uuid, "ipAddress": "127.0.0.1", "hostName": "dn", "ports": ports}

    def _answer(self, request: Any, result: int) -> Any:
        name = NAMES[request.command]
        theirs = WIRE["Request"].FromString(request.SerializeToString())
        if not result:
            result = self._refusal(name, theirs)
        if result or name in {"readContainer", "listBlock", "getBlock", "readChunk"}:
            return super()._answer(request, result)
        carry_out = {
            "createContainer": self._create,
            "writeChunk": self._write,
            "putBlock": self._put,
            "closeContainer": self._close,
            "deleteContainer": self._delete,
        }
        carry_out[name](theirs)
        return ANSWER(command=request.command, result=SUCCESS)

    def _refusal(self, name: str, request: Any) -> int:
        """Return the result code with which Ozone would refuse a request; 0 if Ozone would accept
        the request."""
        replica = self.containers.get(request.containerID)
        if request.datanodeUuid != self.uuid:
            return INVALID_ARGUMENT
        if name == "createContainer":
            assert RECOVERING == request.createContainer.state
            return 0 if replica is None else CONTAINER_EXISTS
        if replica is None:
            return CONTAINER_NOT_FOUND
        if name in OF_BLOCK and getattr(request, name).blockID.replicaIndex != self.index:
            return CONTAINER_NOT_FOUND
        if name in {"writeChunk", "putBlock"}:
            if self.full:
                return 29
            return 0 if replica.state == RECOVERING else CLOSED_CONTAINER_IO
        return 0

    def _create(self, request: Any) -> None:
        self.index = request.createContainer.replicaIndex
        self.containers[request.containerID] = Served({}, {}, b"", RECOVERING)

    def _write(self, request: Any) -> None:
        wish = request.writeChunk
        assert wish.chunkData.chunkName
        assert wish.chunkData.len == len(wish.data)
        assert self.index == wish.blockID.replicaIndex
        data = self.containers[request.containerID].data
        block_id = wish.blockID.localID
        assert wish.chunkData.offset == len(data.get(block_id, b""))
        data[block_id] = data.get(block_id, b"") + wish.data

    def _put(self, request: Any) -> None:
        row = request.putBlock.blockData
        replica = self.containers[request.containerID]
        assert row.size == len(replica.data.setdefault(row.blockID.localID, b""))
        replica.rows[row.blockID.localID] = row.SerializeToString()

    def _close(self, request: Any) -> None:
        self.containers[request.containerID].state = CLOSED

    def _delete(self, request: Any) -> None:
        assert request.deleteContainer.forceDelete
        del self.containers[request.containerID]
