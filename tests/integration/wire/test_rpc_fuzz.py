"""Whatever bytes arrive: an error status each, the server lives, the store is as it was."""

import random
import resource
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from merkle.replica import ContainerId
from scanner.sampling import DRAWN_MAX
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import CONTAINER

SEED = 20_260_711
ROUNDS = 60
MiB = 1024**2
METHODS = {
    "CreateContainer": pb.CreateContainerRequest,
    "WriteChunk": pb.WriteChunkRequest,
    "PutBlock": pb.PutBlockRequest,
    "WriteBlocks": pb.NewBlocks,
    "CloseContainer": pb.CloseContainerRequest,
    "DeleteContainer": pb.DeleteContainerRequest,
    "GetContainer": pb.GetContainerRequest,
    "ListContainers": pb.ListContainersRequest,
    "GetBlocks": pb.GetBlocksRequest,
    "ListBlocks": pb.ListBlocksRequest,
    "ReadChunk": pb.ReadChunkRequest,
    "ReadBlock": pb.ReadBlockRequest,
    "GetSmallFile": pb.ReadBlockRequest,
    "GetContainerHashes": pb.GetContainerHashesRequest,
    "ScanContainer": pb.ScanContainerRequest,
    "SampleChunks": pb.SampleChunksRequest,
    "ListFindings": pb.ListFindingsRequest,
    "Status": pb.StatusRequest,
}
STREAMS = {"ReadChunk", "ReadBlock", "GetContainerHashes", "ScanContainer", "SampleChunks"}
ABSURD = [0, 1, 2, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
ANSWERED_CODES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@pytest.fixture
def datanode(tmp_path: Path) -> Iterator[Datanode]:
    """A datanode with container 1 closed, serving."""
    made = Datanode("dn1", tmp_path)
    made.replica.create()
    made.serve()
    yield made
    made.close()


class Raw:
    """Sends bytes as they are."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.max_send_message_length", 200 * MiB)]
        )

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def send(self, method: str, data: bytes) -> grpc.StatusCode:
        """Return the status with which the server answers."""
        path = f"/suture.v1.Datanode/{method}"
        try:
            if method in STREAMS:
                for _ in self._channel.unary_stream(path)(data, timeout=20):
                    pass
            else:
                self._channel.unary_unary(path)(data, timeout=20)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def state_of(datanode: Datanode) -> tuple[object, ...]:
    """Everything that must stay as it is: container 1, its bytes, its tree."""
    store = datanode.replica.store
    facts = store.replica(CONTAINER)
    return (
        facts.state,
        facts.bcsid,
        facts.block_count,
        store.view(CONTAINER).blocks(),
        store.view(CONTAINER).tree().root,
        datanode.files(),
    )


def absurd_messages(dice: random.Random) -> Iterator[tuple[str, bytes]]:
    """Yield well-formed messages whose numbers make no sense; none names container 1 to change."""

    def number() -> int:
        return dice.choice(ABSURD)

    def key() -> container_pb2.BlockId:
        return container_pb2.BlockId(
            container_id=dice.choice([CONTAINER, *ABSURD]),
            local_id=number(),
            bcsid=number(),
            replica_index=number() % 2**32,
        )

    def chunk() -> container_pb2.ChunkInfo:
        kind = container_pb2.ChecksumData(
            type=dice.randrange(8),  # type: ignore[arg-type]
            bytes_per_checksum=number() % 2**32,
            checksums=dice.randbytes(dice.randrange(40)),
        )
        return container_pb2.ChunkInfo(offset=number(), length=number(), checksum=kind)

    def block() -> container_pb2.BlockData:
        chunks = [chunk() for _ in range(dice.randrange(5))]
        return container_pb2.BlockData(block_id=key(), chunks=chunks, size=number())

    data = dice.randbytes(dice.randrange(100))
    yield (
        "WriteChunk",
        pb.WriteChunkRequest(
            block_id=key(), chunk=chunk(), data=data, commit=block()
        ).SerializeToString(),
    )
    new = pb.NewBlock(block_id=key(), chunks=[chunk() for _ in range(dice.randrange(3))])
    new.is_whole = dice.random() < 0.5
    yield "WriteBlocks", pb.NewBlocks(data=data, blocks=[new] * 2).SerializeToString()
    yield "PutBlock", pb.PutBlockRequest(block=block()).SerializeToString()
    yield "GetBlocks", pb.GetBlocksRequest(block_ids=[key()]).SerializeToString()
    reading = pb.ReadBlockRequest(block_id=key(), offset=number()).SerializeToString()
    yield "ReadBlock", reading
    yield "GetSmallFile", reading
    yield "ReadChunk", pb.ReadChunkRequest(block_id=key(), offset=number()).SerializeToString()
    yield (
        "ListBlocks",
        pb.ListBlocksRequest(container_id=CONTAINER, start_local_id=number()).SerializeToString(),
    )
    yield (
        "ListContainers",
        pb.ListContainersRequest(start_container_id=number()).SerializeToString(),
    )
    yield (
        "GetContainerHashes",
        pb.GetContainerHashesRequest(
            container_id=CONTAINER,
            level=dice.randrange(7),  # type: ignore[arg-type]
            block_ids=[number() for _ in range(dice.randrange(3))],
            ranges=[pb.BlockRange(first=number(), last=number()) for _ in range(dice.randrange(3))],
            range_starts=[number() for _ in range(dice.randrange(3))],
        ).SerializeToString(),
    )


class TestRandomBytes:
    def test_no_bytes_hurt(self, datanode: Datanode) -> None:
        """Random bytes, and valid messages with bits flipped, cut or doubled."""
        dice = random.Random(SEED)
        before = state_of(datanode)
        answers: list[grpc.StatusCode] = []

        with Raw(datanode.address) as raw:
            for method in METHODS:
                for _ in range(ROUNDS):
                    answers.append(raw.send(method, dice.randbytes(dice.randrange(1, 60))))

        assert set(answers) <= ANSWERED_CODES
        assert answers.count(grpc.StatusCode.INVALID_ARGUMENT) > len(answers) // 2
        assert before == state_of(datanode)

    def test_no_numbers_hurt(self, datanode: Datanode) -> None:
        """Absurd ids, offsets, lengths, types and counts in well-formed messages."""
        dice = random.Random(SEED)
        before = state_of(datanode)
        answers: list[grpc.StatusCode] = []

        with Raw(datanode.address) as raw:
            for _ in range(ROUNDS):
                answers += [raw.send(*message) for message in absurd_messages(dice)]

        assert set(answers) <= ANSWERED_CODES
        assert before == state_of(datanode)
        assert [CONTAINER] == [facts.container_id for facts in datanode.replica.store.replicas()]

    def test_unknown_ids_are_not_found(self, datanode: Datanode) -> None:
        """Every method that takes a container id is called for a missing one."""
        with Raw(datanode.address) as raw:
            answers = {
                method: raw.send(method, message(container_id=999).SerializeToString())  # type: ignore[call-arg]
                for method, message in METHODS.items()
                if "container_id" in message.DESCRIPTOR.fields_by_name
                and method not in {"CreateContainer", "GetContainerHashes"}
            }

        assert {grpc.StatusCode.NOT_FOUND} == set(answers.values()), answers


@pytest.mark.slow
class TestHugeMessages:
    def test_a_hundred_mebibytes_never_arrive(self, datanode: Datanode) -> None:
        """The messages are refused by size, and not kept in memory."""
        before = state_of(datanode)
        huge = pb.WriteChunkRequest(data=bytes(100 * MiB)).SerializeToString()
        peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        with Raw(datanode.address) as raw:
            answers = [raw.send("WriteChunk", huge) for _ in range(5)]

        grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib) / 1024
        assert [grpc.StatusCode.RESOURCE_EXHAUSTED] * 5 == answers
        assert grown_mib < 450, "the client's own copies are 100 MiB each; the server keeps none"
        assert before == state_of(datanode)

    def test_a_message_within_the_limit_costs_no_more_than_itself(self, datanode: Datanode) -> None:
        """A hundred refused messages of 30 MiB leave nothing behind."""
        message = pb.WriteChunkRequest(
            block_id=container_pb2.BlockId(container_id=999, local_id=1), data=bytes(30 * MiB)
        ).SerializeToString()

        with Raw(datanode.address) as raw:
            raw.send("WriteChunk", message)
            peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            answers = {raw.send("WriteChunk", message) for _ in range(30)}

        grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kib) / 1024
        assert {grpc.StatusCode.INVALID_ARGUMENT} == answers
        assert grown_mib < 200

    def test_a_hostile_count_of_chunks_is_refused(self, datanode: Datanode) -> None:
        """Millions of empty chunks in one message are one refusal."""
        block = container_pb2.BlockData(
            block_id=container_pb2.BlockId(container_id=CONTAINER, local_id=1)
        )
        block.chunks.extend([container_pb2.ChunkInfo()] * 1_000_000)

        with Raw(datanode.address) as raw:
            answer = raw.send("PutBlock", pb.PutBlockRequest(block=block).SerializeToString())

        assert grpc.StatusCode.INVALID_ARGUMENT is answer
        with Peer(datanode.address) as peer:
            assert CONTAINER == peer.replica(ContainerId(CONTAINER)).container_id

    def test_a_hostile_count_of_drawn_chunks_is_refused(self, datanode: Datanode) -> None:
        """This holds for missing chunks, too, because their numbers alone would fill the memory."""
        request = pb.SampleChunksRequest(chunk_count=2**62, drawn_count=DRAWN_MAX + 1, seed=1)

        with Raw(datanode.address) as raw:
            answer = raw.send("SampleChunks", request.SerializeToString())

        assert grpc.StatusCode.INVALID_ARGUMENT is answer
