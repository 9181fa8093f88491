"""Every field that a client sends while it stores and reads a key, and every field of the answers
that it uses. The test is the control plane and all datanodes.
"""

import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from suture.client.client import Client
from suture.wire.v1 import container_pb2 as c
from suture.wire.v1 import datanode_pb2 as d
from suture.wire.v1 import scm_pb2 as s
from tests.support.command_line import CommandLine
from tests.support.control.scripted_calls import ScriptedCalls
from tests.support.waiting import wait_until

KEY: Final = "reports/today"
BLOCK: Final = c.BlockId(container_id=71, local_id=74, bcsid=73)
SHARDS: Final = range(1, 6)
CELL_BYTES: Final = 64 * 1024


@pytest.fixture
def calls() -> Iterator[ScriptedCalls]:
    """A server for every call."""
    with ScriptedCalls() as server:
        yield server


def allocated(*replicas: c.DatanodeEndpoint) -> s.AllocateBlocksResponse:
    """Return the allocation of a block on these replicas."""
    block = s.BlockAllocation(block_id=BLOCK, replicas=replicas)
    return s.AllocateBlocksResponse(blocks=[block], renew_ms=60_000)


def metadata(block: d.NewBlock) -> dict[str, str]:
    """Return the metadata of a block."""
    return {str(one.key): str(one.value) for one in block.metadata}


def session_of(calls: ScriptedCalls) -> str:
    """Return the session of all calls of a put and its end, which is the same in all of them."""
    names = ("AllocateBlocks", "CommitKey", "EndWriteSession")
    [session] = {one.client_id for name in names for one in calls.requests[name]}
    return str(session)


def test_put_sends_the_block_and_names_the_replica_that_failed(calls: ScriptedCalls) -> None:
    """Two of three datanodes get the block, and the commit names the third."""
    content = bytes(range(256)) * 4
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = f"127.0.0.1:{closed.getsockname()[1]}"
    places = {"dn-1": calls.address, "dn-2": calls.address, "dn-3": gone}
    replicas = [c.DatanodeEndpoint(datanode_id=n, address=a) for n, a in places.items()]
    calls.answers["AllocateBlocks"] = [allocated(*replicas)]
    calls.answers["WriteBlocks"] = [d.WriteBlocksResponse(block_count=1)]

    with Client(calls.address) as client:
        stored = client.put(KEY, content, replace=True)

    session = session_of(calls)
    assert session
    assert stored.replicas_min == 2
    asked = s.AllocateBlocksRequest(client_id=session, sizes=[len(content)])
    assert [asked] == calls.requests["AllocateBlocks"]
    assert [d.CreateContainerRequest(container_id=71)] * 2 == calls.requests["CreateContainer"]
    for message in calls.requests["WriteBlocks"]:
        [block] = message.blocks
        assert (BLOCK, True) == (block.block_id, block.is_whole)
        assert [(0, len(content))] == [(one.offset, one.length) for one in block.chunks]
        assert metadata(block)["key"] == KEY
        assert message.data == content
    block = s.BlockLocation(block_id=BLOCK, length=len(content))
    assert calls.requests["CommitKey"] == [
        s.CommitKeyRequest(
            client_id=session,
            keys=[s.KeyInfo(key=KEY, size=len(content), blocks=[block])],
            replace=True,
            failed=[s.FailedReplica(container_id=71, datanode_id="dn-3")],
        )
    ]
    assert [s.EndWriteSessionRequest(client_id=session)] == calls.requests["EndWriteSession"]


def test_waiting_put_renews_its_session_in_the_time_that_it_is_told(calls: ScriptedCalls) -> None:
    """Each renewal is a commit without keys. No two are closer than the interval."""
    replicas = [c.DatanodeEndpoint(datanode_id=f"dn-{n}", address=calls.address) for n in range(3)]
    answer = allocated(*replicas)
    answer.renew_ms = 300
    calls.answers["AllocateBlocks"] = [answer]
    calls.answers["WriteBlocks"] = [d.WriteBlocksResponse(block_count=1)]
    calls.held["WriteBlocks"] = threading.Event()
    seen_at_s: list[float] = []

    def watch() -> None:
        for count in (1, 4):
            wait_until(lambda count=count: len(calls.requests["CommitKey"]) >= count)
            seen_at_s.append(time.monotonic())
        calls.held["WriteBlocks"].set()

    with ThreadPoolExecutor(1) as executor, Client(calls.address) as client:
        watching = executor.submit(watch)
        client.put(KEY, b"abc")
        watching.result()

    *renewals, last = calls.requests["CommitKey"]
    assert {s.CommitKeyRequest(client_id=session_of(calls)).SerializeToString()} == {
        one.SerializeToString() for one in renewals
    }
    assert [KEY] == [one.key for one in last.keys]
    assert seen_at_s[1] - seen_at_s[0] > 0.6


def test_put_of_a_new_key_names_it_when_it_asks_for_room(calls: ScriptedCalls) -> None:
    """The control plane can refuse a key that exists before any data is sent."""
    replicas = [c.DatanodeEndpoint(datanode_id=f"dn-{n}", address=calls.address) for n in range(3)]
    calls.answers["AllocateBlocks"] = [allocated(*replicas)]
    calls.answers["WriteBlocks"] = [d.WriteBlocksResponse(block_count=1)]

    with Client(calls.address) as client:
        client.put(KEY, b"abc")

    [asked] = calls.requests["AllocateBlocks"]
    [commit] = calls.requests["CommitKey"]
    assert [KEY] == list(asked.keys)
    assert (False, []) == (commit.replace, list(commit.failed))


def test_put_of_shards_sends_each_its_index(calls: ScriptedCalls) -> None:
    """Each datanode gets one index, in the order of the allocation."""
    replicas = [c.DatanodeEndpoint(datanode_id=f"dn-{n}", address=calls.address) for n in SHARDS]
    calls.answers["AllocateBlocks"] = [allocated(*replicas)]
    calls.answers["WriteBlocks"] = [d.WriteBlocksResponse(block_count=1)]
    size = 3 * CELL_BYTES

    with Client(calls.address) as client:
        client.put(KEY, bytes(size), replication="rs-3-2-64k")

    [asked] = calls.requests["AllocateBlocks"]
    expected = {"client_id": session_of(calls), "keys": [KEY], "sizes": [size]}
    assert s.AllocateBlocksRequest(**expected, scheme="rs-3-2-64k") == asked
    created = sorted(calls.requests["CreateContainer"], key=lambda one: int(one.replica_index))
    assert created == [d.CreateContainerRequest(container_id=71, replica_index=n) for n in SHARDS]
    whole: list[Any] = [
        block for sent in calls.requests["WriteBlocks"] for block in sent.blocks if block.is_whole
    ]
    assert [(KEY, str(size))] * len(SHARDS) == [
        (metadata(block)["key"], metadata(block)["blockGroupLen"]) for block in whole
    ]


def test_put_closes_its_container_if_asked(
    calls: ScriptedCalls, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`suture put --close` ends its session and closes its containers."""
    replicas = [c.DatanodeEndpoint(datanode_id=f"dn-{n}", address=calls.address) for n in range(3)]
    calls.answers["AllocateBlocks"] = [allocated(*replicas)]
    calls.answers["WriteBlocks"] = [d.WriteBlocksResponse(block_count=1)]
    (tmp_path / "file").write_bytes(b"abc")

    CommandLine(calls.address, capsys)("put", str(tmp_path / "file"), "--close")

    [end] = calls.requests["EndWriteSession"]
    assert end == s.EndWriteSessionRequest(client_id=session_of(calls), close=True)


def test_get_reads_from_the_replica_of_the_block_and_verifies_it() -> None:
    """Of three equal replicas the client reads the one that the number of the block gives."""
    content = b"some bytes"
    sums = zlib.crc32(content).to_bytes(4, "big")
    checksum = c.ChecksumData(type=c.CRC32, bytes_per_checksum=512, checksums=sums)
    chunk = c.ChunkInfo(length=len(content), checksum=checksum)
    block = s.BlockLocation(block_id=BLOCK, length=len(content))
    with ScriptedCalls() as first, ScriptedCalls() as second, ScriptedCalls() as third:
        servers = [first, second, third]
        for server in servers:
            server.answers["GetSmallFile"] = [d.GetSmallFileResponse(chunks=[chunk], data=content)]
        first.answers["LookupKey"] = [
            s.LookupKeyResponse(
                key=s.KeyInfo(key=KEY, size=len(content), blocks=[block]),
                containers=[
                    s.ContainerReplicas(
                        container_id=71,
                        equal_count=3,
                        replicas=[
                            c.DatanodeEndpoint(datanode_id=f"dn-{n}", address=one.address)
                            for n, one in enumerate(servers)
                        ],
                    )
                ],
            )
        ]

        with Client(first.address) as client:
            read = client.get(KEY)

        assert content == read
        assert [0, 0, 1] == [len(one.requests["GetSmallFile"]) for one in servers]
        [asked] = third.requests["GetSmallFile"]
        assert (71, 74) == (asked.block_id.container_id, asked.block_id.local_id)
