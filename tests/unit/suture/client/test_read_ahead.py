"""The next block of a key is asked for shortly before the one that is read ends."""

from collections.abc import Iterator
from typing import Any

import pytest

from merkle.replica import BlockId, ContainerId
from suture.client.cluster_client import AHEAD_BYTES, ClusterClient
from suture.wire.v1 import container_pb2, scm_pb2

MIB = 1024**2
BLOCK_BYTES = 3 * MIB
BLOCK_COUNT = 3


class Datanode:
    """Sends blocks, and notes when it was asked for each."""

    def __init__(self) -> None:
        self.taken_bytes = 0  # by the reader, of all blocks
        self.asked_at: dict[int, list[int]] = {}

    def parts_from(
        self, _container_id: ContainerId, block_id: BlockId, offset: int, end: int, **_: object
    ) -> Iterator[tuple[int, bytes]]:
        """Send the block in parts of a MiB."""
        self.asked_at.setdefault(block_id, []).append(self.taken_bytes)
        return ((at, bytes(min(MIB, end - at))) for at in range(offset, end, MIB))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ClusterClient, Datanode]]:
    """A client and the only datanode that it knows."""
    datanode = Datanode()
    with ClusterClient("127.0.0.1:1") as opened:
        monkeypatch.setattr(opened, "block_peer", lambda _address: datanode)
        yield opened, datanode


def found(scheme_of_second: str = "") -> scm_pb2.LookupKeyResponse:
    """Return a key of three blocks, each in a container of its own."""
    where = container_pb2.DatanodeEndpoint(datanode_id="dn1", address="127.0.0.1:2")
    numbers = range(1, BLOCK_COUNT + 1)
    blocks = [
        scm_pb2.BlockLocation(
            block_id=container_pb2.BlockId(container_id=number, local_id=number),
            length=BLOCK_BYTES,
        )
        for number in numbers
    ]
    containers: list[Any] = [
        scm_pb2.ContainerReplicas(
            container_id=number,
            replicas=[where],
            equal_count=1,
            scheme=scheme_of_second if number == 2 else "",
        )
        for number in numbers
    ]
    key = scm_pb2.KeyInfo(key="k", size=BLOCK_COUNT * BLOCK_BYTES, blocks=blocks)
    return scm_pb2.LookupKeyResponse(key=key, containers=containers)


def test_the_next_block_is_begun_before_the_one_before_it_ends(
    client: tuple[ClusterClient, Datanode],
) -> None:
    """
    Each once, and no earlier than its first bytes are wanted soon.
    """
    opened, datanode = client

    for part in opened.read(found()):
        datanode.taken_bytes += len(part)

    begun = [0, *(number * BLOCK_BYTES - AHEAD_BYTES - MIB for number in (1, 2))]
    assert {1: [begun[0]], 2: [begun[1]], 3: [begun[2]]} == datanode.asked_at
    assert BLOCK_COUNT * BLOCK_BYTES == datanode.taken_bytes


def test_an_erasure_coded_block_is_not_begun_ahead(
    client: tuple[ClusterClient, Datanode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An erasure-coded block is read in another way. The block after it is requested when it is
    read.
    """
    opened, datanode = client
    monkeypatch.setattr(opened, "_read_group", lambda *_: iter([bytes(BLOCK_BYTES)]))

    for part in opened.read(found("RS-3-2-1024k")):
        datanode.taken_bytes += len(part)

    assert {1: [0], 3: [2 * BLOCK_BYTES]} == datanode.asked_at
