"""Datanodes of Ozone with shards of erasure-coded containers: they give them, and are filled.

What is written to one is read by Ozone's own messages, written off for tests (`ozone_wire`), and it
is taken as Ozone takes it: a shard by who it is meant for, chunks while it is RECOVERING only.
"""

import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agent.ec.codec import encode
from agent.ec.scheme import RS_3_2
from ozone.wire.datanode_messages import ANSWER
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
"""The client's seed and the length of the group in each erasure-coded container of the set."""
NAMES = {number: name for name, number in COMMANDS.items()}
OF_BLOCK = {"getBlock": "getBlock", "readChunk": "readChunk"}


def golden_shards(volumes: Path, container_id: int) -> dict[int, Served]:
    """Return the shards of a container of the golden set by index.

    Rows are Ozone's. The bytes are made anew, and each is what Ozone's row has checksums of.
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
    """Return what is in the only stripe of a group: data cells as the client wrote them, parity."""
    seed, length_bytes = GROUPS[container_id]
    data = java_random(seed, length_bytes)
    cells = [data[at : at + CELL_BYTES] for at in range(0, 3 * CELL_BYTES, CELL_BYTES)]
    return [*cells, *(cell.tobytes() for cell in encode(RS_3_2, cells))]


def _check(row: bytes, data: bytes) -> None:
    """Assert that bytes have the checksums, CRC-32, of Ozone's row."""
    message = WIRE["BlockData"].FromString(row)
    assert len(data) == sum(chunk.len for chunk in message.chunks)
    for chunk in message.chunks:
        assert CRC32 == chunk.checksumData.type
        step = chunk.checksumData.bytesPerChecksum
        sums = [zlib.crc32(data[at : at + step]) for at in range(0, len(data), step)]
        assert [one.to_bytes(4, "big") for one in sums] == list(chunk.checksumData.checksums)


def comparable(row: Any) -> tuple[object, ...]:
    """Return what a row of Ozone's says, but for the names of chunks, which nobody reads."""
    chunks = [
        (one.offset, one.len, one.checksumData.SerializeToString(), one.stripeChecksum)
        for one in row.chunks
    ]
    notes = {one.key: one.value for one in row.metadata}
    return (row.blockID.localID, row.blockID.replicaIndex, row.size, notes, chunks)


def row_of(data: bytes) -> tuple[object, ...]:
    """Return what the bytes of a row say."""
    return comparable(WIRE["BlockData"].FromString(data))


@dataclass
class ShardDatanode(OzoneDatanode):
    """One that has the shard `index` of each of its containers, or gets it."""

    uuid: str = ""
    index: int = 0
    full: bool = False
    """Whether it has no room for what is written."""

    def told(self) -> list[str]:
        """Return Ozone's names of what it was asked, in order."""
        return [NAMES[request.command] for request in self.asked]

    def details(self) -> dict[str, Any]:
        """Return how the manager names it."""
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
        """Return why Ozone would refuse a request, 0 for no reason."""
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
