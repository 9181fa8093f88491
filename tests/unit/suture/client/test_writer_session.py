"""A writer's session: what is stored is on a majority of its replicas, or it is not stored."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from suture.client import writer
from suture.client.file_pieces import SourceFile
from suture.client.writer import ATTEMPTS_MAX, WriterSession
from suture.errors import Code, UnavailableError
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.channel import RESTART_PAUSES_S
from suture.wire.v1 import container_pb2, scm_pb2

NODES = ("dn1", "dn2", "dn3")


class Scm:
    """An SCM that gives each request a container of its own on the same three datanodes."""

    def __init__(self) -> None:
        self.container_id = 0
        self.stored: list[str] = []
        self.failed: set[tuple[int, str]] = set()
        self.asked: list[scm_pb2.AllocateBlocksRequest] = []
        self.refusals: list[UnavailableError] = []  # what the next calls are answered with

    def allocate_blocks(
        self, request: scm_pb2.AllocateBlocksRequest
    ) -> scm_pb2.AllocateBlocksResponse:
        self.asked.append(request)
        if self.refusals:
            raise self.refusals.pop()
        self.container_id += 1
        replicas = [container_pb2.DatanodeEndpoint(datanode_id=n, address=n) for n in NODES]
        blocks = [
            scm_pb2.BlockAllocation(
                block_id=container_pb2.BlockId(
                    container_id=self.container_id, local_id=number, bcsid=number
                ),
                replicas=replicas,
            )
            for number in range(1, len(request.sizes) + 1)
        ]
        return scm_pb2.AllocateBlocksResponse(blocks=blocks)

    def commit_key(self, request: scm_pb2.CommitKeyRequest) -> None:
        self.stored += [key.key for key in request.keys]
        self.failed |= {(item.container_id, item.datanode_id) for item in request.failed}


class Call:
    """A call that has ended, well or not."""

    def __init__(self, error: grpc.RpcError | None) -> None:
        self.error = error

    def result(self, **_: float) -> None:
        if self.error is not None:
            raise self.error

    def add_done_callback(self, done: Callable[[Any], None]) -> None:
        done(self)


class Datanodes:
    """Datanodes of which some refuse one method."""

    def __init__(self, *, down: Sequence[str], method: str) -> None:
        self.down = down
        self.method = method
        self.calls: list[tuple[str, str]] = []

    def dial(self, datanode: NodeAddress) -> Any:
        address = datanode.address

        def stub_of(method: str) -> SimpleNamespace:
            def future(_request: object, **options: float) -> Call:
                assert options["timeout"] > 0
                self.calls.append((address, method))
                is_down = address in self.down and method == self.method
                return Call(grpc.RpcError("down") if is_down else None)

            return SimpleNamespace(future=future)

        return SimpleNamespace(CreateContainer=stub_of("CreateContainer"))

    def stream(self, datanode: NodeAddress) -> Any:
        address = datanode.address

        def begin(messages: Iterator[bytes], timeout_s: float) -> Call:
            del messages
            assert timeout_s > 0
            self.calls.append((address, "WriteBlocks"))
            is_down = address in self.down and self.method == "WriteBlocks"
            return Call(grpc.RpcError("down") if is_down else None)

        return begin


def put(scm: Scm, datanodes: Datanodes, path: Path, size_bytes: int) -> int:
    """Store one file; return on how many datanodes it is."""
    path.write_bytes(b"x" * size_bytes)
    session = WriterSession(scm, datanodes.dial, datanodes.stream)  # type: ignore[arg-type]
    [stored] = session.put([SourceFile("k", path, size_bytes)], replace=False)
    return stored.replicas_min


@pytest.mark.parametrize("size_bytes", [0, 10])
@pytest.mark.parametrize("method", ["CreateContainer", "WriteBlocks"])
def test_a_minority_that_fails_is_left_behind_and_named(
    tmp_path: Path, method: str, size_bytes: int
) -> None:
    """The key is stored on the others, and the SCM is notified of the missing replica."""
    scm, datanodes = Scm(), Datanodes(down=["dn2"], method=method)

    count = put(scm, datanodes, tmp_path / "file", size_bytes)

    assert ["k"] == scm.stored
    assert 2 == count
    assert {(1, "dn2")} == scm.failed


@pytest.mark.parametrize("size_bytes", [0, 10])
@pytest.mark.parametrize("method", ["CreateContainer", "WriteBlocks"])
def test_block_on_a_minority_of_replicas_is_not_stored(
    tmp_path: Path, method: str, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer tries other containers. Then the write fails, and no key is committed."""
    monkeypatch.setattr(writer, "pause", lambda _: None)
    scm, datanodes = Scm(), Datanodes(down=["dn1", "dn3"], method=method)

    with pytest.raises(UnavailableError) as caught:
        put(scm, datanodes, tmp_path / "file", size_bytes)

    assert Code.NOT_ENOUGH_NODES is caught.value.code
    assert [] == scm.stored
    tried = range(1, ATTEMPTS_MAX + 1)
    assert {(number, node) for number in tried for node in ("dn1", "dn3")} == scm.failed


@pytest.mark.parametrize("is_new", [True, False])
def test_a_file_has_its_blocks_in_several_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """
    If it has more than one call is asked for; in order, and its key is asked about once.
    """
    monkeypatch.setattr(writer, "ALLOCATION_BLOCKS_MAX", 3)
    monkeypatch.setattr(WriterSession, "block_bytes", 2)
    scm, datanodes = Scm(), Datanodes(down=[], method="")
    path = tmp_path / "file"
    path.write_bytes(b"x" * 15)
    session = WriterSession(scm, datanodes.dial, datanodes.stream)  # type: ignore[arg-type]

    [stored] = session.put([SourceFile("k", path, 15)], replace=not is_new)

    assert [[2, 2, 2], [2, 2, 2], [2, 1]] == [list(request.sizes) for request in scm.asked]
    assert [["k"] if is_new else [], [], []] == [list(request.keys) for request in scm.asked]
    assert [1, 1, 1, 2, 2, 2, 3, 3] == [b.block_id.container_id for b in stored.blocks]
    assert [2, 2, 2, 2, 2, 2, 2, 1] == [b.length for b in stored.blocks]
    assert ["k"] == scm.stored


def test_a_control_plane_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    """A busy control plane is asked again, also for the first blocks of a session, because it
    recorded nothing.
    """
    scm, datanodes = Scm(), Datanodes(down=[], method="")
    scm.refusals = [UnavailableError(Code.BUSY, "too many calls") for _ in range(2)]

    assert 3 == put(scm, datanodes, tmp_path / "file", 10)
    assert 3 == len(scm.asked)


def test_writer_pauses_before_it_tries_another_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pause is longer, because the cause of the failures may be temporary."""
    pauses: list[float] = []
    monkeypatch.setattr(writer, "pause", pauses.append)
    scm, datanodes = Scm(), Datanodes(down=["dn1", "dn3"], method="CreateContainer")

    with pytest.raises(UnavailableError):
        put(scm, datanodes, tmp_path / "file", 10)

    assert list(RESTART_PAUSES_S) == pauses
