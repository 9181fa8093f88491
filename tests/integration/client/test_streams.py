"""A writer's streams to real datanodes: the same blocks everywhere, whoever fails."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from merkle.replica import BlockId, ContainerId
from suture.client import block_messages, fan_out, writer
from suture.client.cluster_client import ClusterClient
from suture.client.ecwriter import EcWriterSession
from suture.client.fan_out import WAITING_MAX, Open, ReplicaStream, broadcast
from suture.client.file_pieces import SourceFile
from suture.client.writer import ATTEMPTS_MAX, StoredFile, WriterSession
from suture.ec.scheme import Scheme, parse_scheme
from suture.errors import Code, UnavailableError
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.refusing_relay import CANCEL, REFUSED_STREAM, RefusingRelay, refusing_relay
from tests.support.storage.datanodes import Datanode
from tests.support.storage.three_replicas import content

COUNT = 3
MIB = 1024**2


class Scm:
    """Gives each allocation a container of its own on all datanodes."""

    def __init__(self, nodes: Sequence[Datanode]) -> None:
        self.replicas = [
            container_pb2.DatanodeEndpoint(datanode_id=node.datanode_id, address=node.address)
            for node in nodes
        ]
        self.container_id = 100
        self.failed: set[tuple[int, str]] = set()
        self.keys: list[str] = []

    def allocate_blocks(
        self, request: scm_pb2.AllocateBlocksRequest
    ) -> scm_pb2.AllocateBlocksResponse:
        self.container_id += 1
        return scm_pb2.AllocateBlocksResponse(
            blocks=[
                scm_pb2.BlockAllocation(
                    block_id=container_pb2.BlockId(
                        container_id=self.container_id, local_id=number, bcsid=number
                    ),
                    replicas=self.replicas,
                )
                for number in range(1, len(request.sizes) + 1)
            ]
        )

    def commit_key(self, request: scm_pb2.CommitKeyRequest) -> None:
        self.failed |= {(item.container_id, item.datanode_id) for item in request.failed}
        self.keys += [item.key for item in request.keys]


class World:
    """Three datanodes, or one for each shard, and a session."""

    def __init__(self, path: Path, stack: ExitStack, scheme: Scheme | None = None) -> None:
        path.mkdir(exist_ok=True)
        self.nodes = []
        for number in range(scheme.shard_count if scheme else COUNT):
            node = Datanode(f"dn{number}", path / f"dn{number}")
            node.serve()
            stack.callback(node.close)
            self.nodes.append(node)
        self.scm = Scm(self.nodes)
        self.peers = {node.address: stack.enter_context(Peer(node.address)) for node in self.nodes}
        self.wrote: list[int] = []

        def dial(datanode: NodeAddress) -> Any:
            return self.peers[datanode.address].stub

        def stream(datanode: NodeAddress) -> Open:
            return self.peers[datanode.address].begin_blocks

        scm: Any = self.scm
        self.session = (
            WriterSession(scm, dial, stream, self.wrote.append)
            if scheme is None
            else EcWriterSession(scm, dial, stream, self.wrote.append, scheme=scheme)
        )

    def refuse(
        self, number: int, count: int, stack: ExitStack, why: int = REFUSED_STREAM
    ) -> RefusingRelay:
        """Have one datanode refuse the next calls, as one with too many does."""
        address = self.nodes[number].address
        port = int(address.rpartition(":")[2])
        relay = stack.enter_context(refusing_relay(port, count, why))
        self.peers[address] = stack.enter_context(Peer(relay.address))
        return relay

    def check(self, stored: Sequence[StoredFile], nodes: Sequence[Datanode]) -> None:
        """Assert that these datanodes have what was stored."""
        for number, item in enumerate(stored):
            for node in nodes:
                store = node.replica.store
                data = b""
                for location in item.blocks:
                    at = location.block_id
                    view, block_id = store.view(ContainerId(at.container_id)), BlockId(at.local_id)
                    block = view.block(block_id)
                    assert location.length == block.length_bytes
                    assert at.bcsid == block.bcsid
                    assert ("key", item.key) in block.metadata
                    if location.length:
                        data += view.read(block_id, 0, location.length)
                assert contents(number, item.size_bytes) == data


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is closed at the end."""
    with ExitStack() as made:
        yield made


def contents(number: int, size_bytes: int) -> bytes:
    """Return the bytes of a file."""
    return content(number, 0, size_bytes)


def sources(path: Path, *sizes_bytes: int) -> list[SourceFile]:
    """Make files of these sizes."""
    made = []
    for number, size_bytes in enumerate(sizes_bytes):
        file = path / f"file{number}"
        file.write_bytes(contents(number, size_bytes))
        made.append(SourceFile(f"k/{number}", file, size_bytes))
    return made


SIZES = [10, 0, 50_000, 2 * MIB, 9 * MIB + 5, 1, 100_000]


def test_every_replica_has_the_same(tmp_path: Path, stack: ExitStack) -> None:
    """
    Files of all sizes in one put.
    """
    world = World(tmp_path, stack)
    files = sources(tmp_path, *SIZES)

    stored = world.session.put(files, replace=False)

    assert {COUNT} == {item.replicas_min for item in stored}
    world.check(stored, world.nodes)
    assert sum(SIZES) == sum(world.wrote)
    assert set() == world.scm.failed
    facts = [node.replica.store.replica(ContainerId(101)) for node in world.nodes]
    assert {(len(SIZES), sum(SIZES))} == {(one.block_count, one.used_bytes) for one in facts}


def test_datanode_known_by_two_ids_is_counted_once(tmp_path: Path, stack: ExitStack) -> None:
    """Two ids have one address, as after a reinstallation: one of the copies would not exist."""
    world = World(tmp_path, stack)
    world.scm.replicas[2].address = world.nodes[1].address
    client = stack.enter_context(ClusterClient("127.0.0.1:1"))
    scm: Any = world.scm
    session = WriterSession(scm, client._dial, client._stream)

    stored = session.put(sources(tmp_path, *SIZES), replace=False)

    assert {COUNT - 1} == {item.replicas_min for item in stored}
    world.check(stored, world.nodes[:2])
    assert {(101, "dn2")} == world.scm.failed


def test_runs_are_bounded(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The amount that is acknowledged together is bounded. Order and commit ids continue across
    runs.
    """
    monkeypatch.setattr(block_messages, "RUN_BYTES_MAX", 3 * MIB)
    world = World(tmp_path, stack)

    stored = world.session.put(sources(tmp_path, *SIZES), replace=False)

    world.check(stored, world.nodes)


@pytest.mark.parametrize("how", ["gone", "closed"])
def test_a_replica_that_fails_is_left_behind(tmp_path: Path, stack: ExitStack, how: str) -> None:
    """The datanode is unreachable or refuses. The others have all data, and the SCM is notified."""
    world = World(tmp_path, stack)
    bad = world.nodes[1]
    if how == "gone":
        bad.stop_serving()
    else:
        bad.replica.store.create_container(ContainerId(101))
        world.session.state.created.add((101, "dn1"))
        bad.replica.store.close_container(ContainerId(101), force=True)

    stored = world.session.put(sources(tmp_path, *SIZES), replace=False)

    assert {COUNT - 1} == {item.replicas_min for item in stored}
    world.check(stored, [world.nodes[0], world.nodes[2]])
    assert {(101, "dn1")} == world.scm.failed


def test_put_that_reaches_only_a_minority_is_refused(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer tries other containers, and reports each failed datanode."""
    monkeypatch.setattr(writer, "pause", lambda _: None)
    world = World(tmp_path, stack)
    for node in world.nodes[1:]:
        node.stop_serving()

    with pytest.raises(UnavailableError) as caught:
        world.session.put(sources(tmp_path, 10, 20), replace=False)

    assert Code.NOT_ENOUGH_NODES is caught.value.code
    tried = range(101, 101 + ATTEMPTS_MAX)
    assert {(c, n) for c in tried for n in ("dn1", "dn2")} == world.scm.failed


def test_a_run_that_a_minority_takes_is_written_elsewhere(tmp_path: Path, stack: ExitStack) -> None:
    """If most replicas refuse during the write, the whole run goes to another container."""
    world = World(tmp_path, stack)
    for node in world.nodes[1:]:
        node.replica.store.create_container(ContainerId(101))
        world.session.state.created.add((101, node.datanode_id))
        node.replica.store.close_container(ContainerId(101), force=True)

    stored = world.session.put(sources(tmp_path, *SIZES), replace=False)

    assert sum(SIZES) == sum(world.wrote), "what went out twice counts once"
    assert {102} == {b.block_id.container_id for item in stored for b in item.blocks}
    assert {COUNT} == {item.replicas_min for item in stored}
    world.check(stored, world.nodes)


def test_a_session_that_is_stopped_ends_its_streams(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Nothing of a block that was cut off stays.
    """
    world = World(tmp_path, stack)
    files = sources(tmp_path, 9 * MIB)
    messages = block_messages.messages_of

    def stopping(run: Any) -> Iterator[tuple[bytes, int]]:
        for message in messages(run):
            yield message
            world.session.stopped = True

    monkeypatch.setattr(writer, "messages_of", stopping)
    with pytest.raises(UnavailableError) as caught:
        world.session.put(files, replace=False)

    assert Code.CANCELLED is caught.value.code
    for node in world.nodes:
        node.stop_serving()
        assert [] == node.replica.store.view(ContainerId(101)).blocks()


def test_a_session_that_is_stopped_commits_no_key(tmp_path: Path, stack: ExitStack) -> None:
    """An interrupted put commits none of its keys, even if all of their bytes were sent."""
    world = World(tmp_path, stack)

    def stop(_data_bytes: int) -> None:
        world.session.stopped = True

    world.session._wrote = stop
    with pytest.raises(UnavailableError) as caught:
        world.session.put(sources(tmp_path, 10, 20), replace=False)

    assert Code.CANCELLED is caught.value.code
    assert [] == world.scm.keys


CODE = parse_scheme("rs-3-2-64k")
CODED_SIZES = [0, 1, 65_536, 100_000, 3 * 65_536, 500_000, 1_000_003]


def test_data_shards_hold_the_cells_in_turn(tmp_path: Path, stack: ExitStack) -> None:
    """
    Cell 0 of a stripe is on the first shard, cell 1 on the second; every shard is committed, also
    one that has no cell of a short group.
    """
    world = World(tmp_path, stack, CODE)
    cell_bytes, container_id = 65_536, ContainerId(101)

    stored = world.session.put(sources(tmp_path, *CODED_SIZES), replace=False)

    assert {CODE.shard_count} == {item.replicas_min for item in stored}
    assert sum(CODED_SIZES) == sum(world.wrote)
    assert set() == world.scm.failed
    for number, size_bytes in enumerate(CODED_SIZES):
        data = contents(number, size_bytes)
        [location] = stored[number].blocks
        block_id = BlockId(location.block_id.local_id)
        for place, node in enumerate(world.nodes):
            store = node.replica.store
            block = store.view(container_id).block(block_id)
            assert location.block_id.bcsid == block.bcsid
            if place < CODE.data_count:
                begins = range(place * cell_bytes, size_bytes, CODE.data_count * cell_bytes)
                expected = [data[begin : begin + cell_bytes] for begin in begins]
                chunks = [(chunk.offset, chunk.length_bytes) for chunk in block.chunks]
                assert expected == [store.view(container_id).read(block_id, *one) for one in chunks]


def test_a_group_whose_shard_fails_is_written_elsewhere(tmp_path: Path, stack: ExitStack) -> None:
    """
    All shards or none: a group with fewer would begin its life degraded.
    """
    world = World(tmp_path, stack, CODE)
    store = world.nodes[3].replica.store
    world.session.state.created.add((101, "dn0"))
    for number, node in enumerate(world.nodes, 1):
        node.replica.store.create_container(ContainerId(101), replica_index=number)
    store.close_container(ContainerId(101), force=True)

    [stored] = world.session.put(sources(tmp_path, 500_000), replace=False)

    assert [102] == [block.block_id.container_id for block in stored.blocks]
    assert (101, "dn3") in world.scm.failed


@pytest.mark.parametrize("scheme", [None, CODE])
@pytest.mark.parametrize("is_created", [True, False])
def test_a_datanode_that_is_busy_is_not_left_behind(
    tmp_path: Path, stack: ExitStack, scheme: Scheme | None, is_created: bool
) -> None:
    """A refused call stored nothing. It is repeated, whatever call it is, and the datanode gets
    all data.
    """
    world = World(tmp_path, stack, scheme)
    for number, node in enumerate(world.nodes, 1) if is_created else ():
        node.replica.store.create_container(ContainerId(101), replica_index=number if scheme else 0)
        world.session.state.created.add((101, node.datanode_id))
    relay = world.refuse(1, 3, stack)

    stored = world.session.put(sources(tmp_path, 2 * MIB, 10, 0), replace=False)

    assert 3 == relay.refused_count
    assert {len(world.nodes)} == {item.replicas_min for item in stored}
    assert {101} == {b.block_id.container_id for item in stored for b in item.blocks}
    assert set() == world.scm.failed
    assert 2 * MIB + 10 == sum(world.wrote), "what went out twice counts once"
    if scheme is None:
        world.check(stored, world.nodes)


@pytest.mark.parametrize("scheme", [None, CODE])
def test_writer_retries_a_datanode_that_cancels_calls(
    tmp_path: Path, stack: ExitStack, scheme: Scheme | None
) -> None:
    """A datanode whose calls mostly wait for their callers cancels some. The retried calls find
    room.
    """
    world = World(tmp_path, stack, scheme)
    relay = world.refuse(1, 3, stack, CANCEL)

    stored = world.session.put(sources(tmp_path, 2 * MIB), replace=False)

    assert 3 == relay.refused_count
    assert {len(world.nodes)} == {item.replicas_min for item in stored}
    assert set() == world.scm.failed


def test_a_put_whose_connections_are_closed_ends(tmp_path: Path, stack: ExitStack) -> None:
    """Its calls are not repeated, because every connection is closed."""
    world = World(tmp_path, stack)

    def close(_data_bytes: int) -> None:
        for peer in world.peers.values():
            peer.close()

    world.session._wrote = close
    with pytest.raises(UnavailableError) as caught:
        world.session.put(sources(tmp_path, 9 * MIB), replace=False)

    assert Code.UNAVAILABLE is caught.value.code
    assert "closed" in str(caught.value)
    assert {} == world.session.state.failed


def test_writer_drops_a_datanode_that_stays_busy(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer does not wait for ever for one of three datanodes."""
    monkeypatch.setattr(fan_out, "BUSY_PATIENCE_S", 0.1)
    world = World(tmp_path, stack)
    relay = world.refuse(1, 1_000_000, stack)

    stored = world.session.put(sources(tmp_path, 10), replace=False)

    assert relay.refused_count > 1
    assert {COUNT - 1} == {item.replicas_min for item in stored}
    assert {(101, "dn1")} == world.scm.failed
    assert "busy" in world.session.state.failed[101, "dn1"]


def test_a_session_that_is_stopped_does_not_wait_for_who_is_busy(
    tmp_path: Path, stack: ExitStack
) -> None:
    """The datanode is not reported as failed."""
    world = World(tmp_path, stack)
    world.refuse(1, 1_000_000, stack)
    world.session.stopped = True

    with pytest.raises(UnavailableError) as caught:
        world.session.put(sources(tmp_path, 10), replace=False)

    assert Code.CANCELLED is caught.value.code
    assert {} == world.session.state.failed


class Silent:
    """A call that takes no message, and ends only when it is cancelled."""

    def __init__(self) -> None:
        self.is_cancelled = False
        self._tell: Callable[[object], None] = lambda _: None

    def add_done_callback(self, tell: Callable[[object], None]) -> None:
        self._tell = tell

    def cancel(self) -> None:
        self.is_cancelled = True
        self._tell(self)

    def result(self, **options: float) -> None:
        assert options["timeout"] > 0
        raise grpc.FutureCancelledError if self.is_cancelled else grpc.FutureTimeoutError


@pytest.mark.parametrize("message_count", [1, WAITING_MAX + 100])
def test_writer_drops_a_datanode_that_takes_no_messages(message_count: int) -> None:
    """A datanode that accepts no messages or does not answer delays the others once, and is then
    dropped.
    """
    call = Silent()
    lane = ReplicaStream(
        lambda _messages, _timeout_s: call, message_timeout_s=0.05, message_count=message_count
    )

    begun_s = time.monotonic()
    failed = broadcast(iter([b"m"] * message_count), {"dn": lane})

    assert time.monotonic() - begun_s < 0.05 * 50
    assert ["dn"] == list(failed)
    assert call.is_cancelled
