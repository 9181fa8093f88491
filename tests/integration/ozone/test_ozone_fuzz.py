"""Whatever bytes arrive at the door for Ozone: an answer or a status, and the store as it was."""

import random
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from merkle.replica import ContainerId
from tests.support.ozone.ozone_agent import SEND, MiB, OzoneAgent, OzoneClient, block_id, served
from tests.support.ozone.ozone_wire import COMMANDS, RESULTS, WIRE
from tests.support.storage.stored_replica import CONTAINER, DATANODE

SEED = 20_261_125
ROUNDS = 60
SHARD = ContainerId(7)
ABSURD = [0, 1, 2, 7, 9, 2**31, 2**32 - 1, 2**62, 2**63 - 1]
SIGNED = [*ABSURD, -1, -(2**63)]
GIVEN_UP = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[tuple[OzoneAgent, OzoneClient]]:
    """An agent with container 1 closed, and an open shard of container 7."""
    with served(tmp_path) as (made, client):
        made.replica.create()
        made.replica.store.create_container(SHARD, replica_index=2)
        made.replica.put(9, 100, container_id=SHARD)
        yield made, client


def state_of(made: OzoneAgent) -> tuple[object, ...]:
    """Everything that must stay as it is: container 1, its rows, its tree, its bytes."""
    store = made.replica.store
    paths = sorted(store.paths(CONTAINER).chunks.iterdir())
    return (
        store.replica(CONTAINER),
        store.view(CONTAINER).blocks(),
        store.view(CONTAINER).tree().root,
        [path.read_bytes() for path in paths],
    )


class Tally:
    """What came of the bytes that were sent: results, and statuses of gRPC."""

    def __init__(self, address: str) -> None:
        self.outcomes: Counter[Any] = Counter()
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_receive_message_length", 40 * MiB),
                ("grpc.max_send_message_length", 200 * MiB),
            ],
        )

    def __enter__(self) -> "Tally":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def send(self, *requests: bytes) -> None:
        """Send a conversation, and count its end."""
        call: Any = self._channel.stream_stream(SEND)
        try:
            for data in call(iter(requests), timeout=20):
                self.outcomes[RESULTS[WIRE["Response"].FromString(data).result]] += 1
        except grpc.RpcError as error:
            self.outcomes[error.code()] += 1


def absurd_requests(dice: random.Random) -> Iterator[bytes]:
    """Yield well-formed requests, one of each command, whose numbers make no sense."""

    def key() -> dict[str, int]:
        return {
            "containerID": dice.choice([CONTAINER, SHARD, *SIGNED]),
            "localID": dice.choice(SIGNED),
            "bcsid": dice.choice([0, 0, *ABSURD]),
            "replicaIndex": dice.choice([0, 2, *SIGNED]),
        }

    def chunk() -> dict[str, Any]:
        sums = [dice.randbytes(dice.randrange(40)) for _ in range(dice.randrange(3))]
        kind = {"type": dice.choice([*range(7), *SIGNED]), "checksums": sums}
        kind |= {"bytesPerChecksum": dice.choice(ABSURD)}
        place = {"offset": dice.choice(ABSURD), "len": dice.choice([3, *ABSURD])}
        return {"chunkName": "c", **place, "checksumData": kind, "stripeChecksum": b"s"}

    def block() -> dict[str, Any]:
        note = {"key": dice.choice(["k", "incremental", "\0"]), "value": "v" * dice.randrange(99)}
        chunks = [chunk() for _ in range(dice.randrange(4))]
        return {"blockID": key(), "chunks": chunks, "metadata": [note], "size": dice.choice(SIGNED)}

    bodies: dict[str, dict[str, Any]] = {
        "createContainer": {"replicaIndex": dice.choice(SIGNED), "state": dice.choice(SIGNED)},
        "readContainer": {},
        "listContainer": {"count": dice.choice(ABSURD)},
        "putBlock": {"blockData": block()},
        "getBlock": {"blockID": key()},
        "listBlock": {"startLocalID": dice.choice(SIGNED), "count": dice.choice(ABSURD)},
        "readChunk": {"blockID": key(), "chunkData": chunk(), "readChunkVersion": 1},
        "writeChunk": {
            "blockID": key(),
            "chunkData": chunk(),
            "data": dice.randbytes(dice.choice([0, 3, 9])),
            "block": {"blockData": block()},
        },
        "getCommittedBlockLength": {"blockID": key()},
        "echo": {"payloadSizeResp": dice.choice(SIGNED) % 2**31, "sleepTimeMs": 0},
        "getContainerChecksumInfo": {"containerID": dice.choice(SIGNED)},
        "readBlock": {
            "blockID": key(),
            "offset": dice.choice(ABSURD),
            "length": dice.choice(ABSURD),
            "responseDataSize": dice.choice(ABSURD),
        },
        "deleteContainer": {"forceDelete": True},
        "finalizeBlock": {},
    }
    for command, body in bodies.items():
        owner = dice.choice([CONTAINER, CONTAINER, SHARD, *SIGNED])
        if "blockID" in body and dice.random() < 0.7:
            owner = body["blockID"]["containerID"]
        if command == "deleteContainer":
            owner = dice.choice([CONTAINER, *SIGNED])
        yield WIRE["Request"](
            cmdType=COMMANDS[command],
            containerID=owner,
            datanodeUuid=DATANODE,
            **{command: body},
        ).SerializeToString()


def test_no_bytes_hurt(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """Random bytes, and requests with bits flipped, cut off or doubled."""
    made, client = agent
    dice = random.Random(SEED)
    before = state_of(made)
    whole = [
        client.request("getBlock", 1, blockID=block_id(1)),
        client.request("readBlock", 1, blockID=block_id(1), offset=0, length=9),
        client.request("listBlock", 1, count=9),
        client.request("getContainerChecksumInfo", 1, containerID=1),
    ]

    with Tally(made.address) as tally:
        for _ in range(ROUNDS * 5):
            tally.send(dice.randbytes(dice.randrange(1, 60)))
            data = bytearray(dice.choice(whole))
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            tally.send(bytes(data), bytes(data[: dice.randrange(len(data))]))

    assert set(tally.outcomes) <= {*RESULTS.values(), *GIVEN_UP}
    assert "CONTAINER_INTERNAL_ERROR" not in tally.outcomes
    assert tally.outcomes[grpc.StatusCode.INVALID_ARGUMENT] > ROUNDS
    assert before == state_of(made)


def test_no_numbers_hurt(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """Absurd ids, offsets, lengths, types and counts in requests of every command."""
    made, _ = agent
    dice = random.Random(SEED)
    before = state_of(made)

    with Tally(made.address) as tally:
        for _ in range(ROUNDS):
            for request in absurd_requests(dice):
                tally.send(request)

    assert set(tally.outcomes) <= {*RESULTS.values(), *GIVEN_UP}
    assert "CONTAINER_INTERNAL_ERROR" not in tally.outcomes
    assert len(tally.outcomes) > 8, "too few ends are reached for this to say much"
    assert before == state_of(made)
    with OzoneClient(made.address) as client:
        assert "SUCCESS" == client.result("readContainer")


@pytest.mark.slow
def test_large_messages_leave_nothing_behind(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """Beyond the limit they never arrive; within it, 1.8 GB of refused ones leave nothing here."""
    made, client = agent
    before = state_of(made)
    key = {"containerID": 99, "localID": 1}
    huge = client.request("writeChunk", 99, blockID=key, data=bytes(100 * MiB))
    large = client.request("writeChunk", 99, blockID=key, data=bytes(30 * MiB))

    with Tally(made.address) as tally:
        for _ in range(3):
            tally.send(huge)
        for _ in range(30):  # until each thread, and its part of the heap, has had one
            tally.send(large)
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(60):
            tally.send(large)

    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib) / 1024
    assert {grpc.StatusCode.RESOURCE_EXHAUSTED: 3, "MALFORMED_REQUEST": 90} == tally.outcomes
    assert grown_mib < 200
    assert before == state_of(made)


def test_a_hostile_count_of_chunks_is_refused(agent: tuple[OzoneAgent, OzoneClient]) -> None:
    """A million empty chunks in one message are one refusal."""
    made, client = agent
    block = WIRE["BlockData"](blockID=block_id(1, SHARD, replicaIndex=2))
    block.chunks.extend([WIRE["ChunkInfo"]()] * 1_000_000)

    assert "MALFORMED_REQUEST" == client.result("putBlock", SHARD, blockData=block)
    assert [9] == [one.block_id for one in made.replica.store.view(SHARD).blocks()]
