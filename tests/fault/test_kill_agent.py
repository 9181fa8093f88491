"""Agents killed with SIGKILL at steps of writes and repairs lose nothing.

One run without a kill counts the steps; then each run dies before one of them, is started again on
what is left, and must have everything it ever acknowledged.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from agent.store.recovery.fsck import fsck
from merkle.replica import BlockData, BlockId, ContainerId
from suture.errors import RefusedError
from suture.wire.clients.peer import Peer
from suture.wire.mapping import codec, new_blocks_message
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.control.scripted_scm import ScriptedScm
from tests.support.faults.victim import Victim, steps_between, write_config
from tests.support.sizes import size
from tests.support.storage.three_replicas import ThreeReplicas, chunk_of, content

pytestmark = [pytest.mark.fault, pytest.mark.slow]

POINTS = size(16, nightly=50)  # of each test
BATCH_BLOCKS = 12
BATCH_SIZE = 4
CONTAINER = ContainerId(7)
BLOCKS = 6
CHUNK_BYTES = 20_000
CALL_S = 20.0


class Writer:
    """Writes blocks of two chunks, and keeps what was acknowledged."""

    def __init__(self) -> None:
        self.created = False
        self.closed = False
        self.chunks: dict[tuple[int, int], bytes] = {}  # (block, offset) -> bytes
        self.committed: dict[int, int] = {}  # block -> length

    def run(self, address: str) -> bool:
        """Write until done or the agent dies; return whether all was acknowledged."""
        with Peer(address) as peer:
            try:
                self._write(peer)
            except grpc.RpcError:
                return False
        return True

    def _write(self, peer: Peer) -> None:
        peer.stub.CreateContainer(
            datanode_pb2.CreateContainerRequest(container_id=CONTAINER), timeout=CALL_S
        )
        self.created = True
        for block_id in range(1, BLOCKS + 1):
            self._write_block(peer, block_id)
        peer.stub.CloseContainer(
            datanode_pb2.CloseContainerRequest(container_id=CONTAINER, bcsid=BLOCKS),
            timeout=CALL_S,
        )
        self.closed = True

    def _write_block(self, peer: Peer, block_id: int) -> None:
        """Odd blocks commit with the last chunk, even ones by a call of its own."""
        key = container_pb2.BlockId(container_id=CONTAINER, local_id=block_id, bcsid=block_id)
        parts = [content(block_id, index, CHUNK_BYTES) for index in range(2)]
        chunks = [chunk_of(index * CHUNK_BYTES, part) for index, part in enumerate(parts)]
        block = BlockData(BlockId(block_id), codec.parse_bcsid(block_id, ""), tuple(chunks))
        message = codec.block_message(CONTAINER, block)
        for chunk, part in zip(chunks, parts, strict=True):
            request = datanode_pb2.WriteChunkRequest(
                block_id=key, chunk=codec.chunk_message(chunk), data=part
            )
            commits = block_id % 2 == 1 and chunk is chunks[-1]
            if commits:
                request.commit.CopyFrom(message)
            peer.stub.WriteChunk(request, timeout=CALL_S)
            self.chunks[block_id, chunk.offset] = part
            if commits:
                self.committed[block_id] = block.length_bytes
        if block_id % 2 == 0:
            peer.stub.PutBlock(datanode_pb2.PutBlockRequest(block=message), timeout=CALL_S)
            self.committed[block_id] = block.length_bytes


class BatchWriter(Writer):
    """Writes blocks of two chunks, several in one call, and keeps what was acknowledged."""

    def _write(self, peer: Peer) -> None:
        peer.stub.CreateContainer(
            datanode_pb2.CreateContainerRequest(container_id=CONTAINER), timeout=CALL_S
        )
        self.created = True
        for first in range(1, BATCH_BLOCKS + 1, BATCH_SIZE):
            self._write_batch(peer, range(first, first + BATCH_SIZE))

    def _write_batch(self, peer: Peer, block_ids: range) -> None:
        """The last block of a batch is too large to be in memory whole."""
        messages: list[datanode_pb2.NewBlock] = []
        datas: list[bytes] = []
        written: dict[tuple[int, int], bytes] = {}
        for block_id in block_ids:
            chunk_bytes = CHUNK_BYTES * (4 if block_id == block_ids[-1] else 1)
            parts = [content(block_id, index, chunk_bytes) for index in range(2)]
            chunks = [chunk_of(index * chunk_bytes, part) for index, part in enumerate(parts)]
            key = container_pb2.BlockId(container_id=CONTAINER, local_id=block_id, bcsid=block_id)
            messages.append(
                new_blocks_message.new_block_message(
                    key, chunks, is_whole=True, metadata=[("k", "v")]
                )
            )
            datas += parts
            for chunk, part in zip(chunks, parts, strict=True):
                written[block_id, chunk.offset] = part
        answer = peer.begin_blocks(
            iter([new_blocks_message.encode(messages, datas)]), CALL_S
        ).result()
        assert len(block_ids) == answer.block_count
        self.chunks |= written
        for block_id in block_ids:
            length = sum(len(part) for (owner, _), part in written.items() if owner == block_id)
            self.committed[block_id] = length


def read_acknowledged(peer: Peer, writer: Writer) -> None:
    """Assert that everything the writer had acknowledged reads back."""
    if writer.created:
        assert CONTAINER == peer.replica(CONTAINER).container_id
    for block_id in {block_id for block_id, _ in writer.chunks}:
        offsets = sorted(offset for owner, offset in writer.chunks if owner == block_id)
        commit_if_needed(peer, writer, block_id, offsets)
        for offset in offsets:
            _, data = peer.read_chunk(CONTAINER, BlockId(block_id), offset)
            assert writer.chunks[block_id, offset] == data


def commit_if_needed(peer: Peer, writer: Writer, block_id: int, offsets: list[int]) -> None:
    """Commit acknowledged chunks whose commit was not: no byte of them is sent again."""
    try:
        block = peer.block(CONTAINER, BlockId(block_id))
    except RefusedError:
        assert block_id not in writer.committed
        chunks = tuple(chunk_of(offset, writer.chunks[block_id, offset]) for offset in offsets)
        block = BlockData(BlockId(block_id), codec.parse_bcsid(block_id, ""), chunks)
        request = datanode_pb2.PutBlockRequest(block=codec.block_message(CONTAINER, block))
        peer.stub.PutBlock(request, timeout=CALL_S)
    assert writer.committed.get(block_id, 0) <= block.length_bytes


def assert_clean(volume: Path) -> None:
    """Assert that the offline check, reading all data, finds nothing."""
    report = fsck(volume, read_data=True)
    assert () == report.problems


def test_writes(tmp_path: Path) -> None:
    """An agent killed at any step of a write keeps every acknowledged chunk, and fsck is clean."""
    kill_while_writing(tmp_path, Writer)


def test_batches(tmp_path: Path) -> None:
    """An agent killed at any step of a batch of blocks keeps every acknowledged block."""
    kill_while_writing(tmp_path, BatchWriter)


def kill_while_writing(tmp_path: Path, writer_of: Callable[[], Writer]) -> None:
    """Kill an agent at steps of what a writer does, and look at what it acknowledged."""
    with ScriptedScm() as scm, Victim(tmp_path / "agent.log") as victim:
        config = write_config(tmp_path / "whole.toml", tmp_path / "whole", scm.address)
        assert writer_of().run(victim.start_counted(config))
        steps = steps_between(1, victim.stop()["steps"], POINTS)
        killed = 0

        for number, step in enumerate(steps):
            volume = tmp_path / f"run{number}"
            config = write_config(tmp_path / "run.toml", volume, scm.address)
            writer = writer_of()
            address = victim.start_doomed(config, kill_at=step)
            finished = address is not None and writer.run(address)
            if address is not None:
                killed += (victim.stop() if finished else victim.wait())["signal"] == 9
            else:
                killed += 1
            address = victim.start(config)
            with Peer(address) as peer:
                read_acknowledged(peer, writer)
            assert 0 == victim.stop()["signal"]
            assert_clean(volume)
            shutil.rmtree(volume)

    assert killed >= len(steps) * 0.9, "the faults were not injected"


def test_repairs(tmp_path: Path) -> None:
    """An agent killed at any step of a repair keeps what was whole, and the next repair heals
    the rest.
    """
    with (
        ScriptedScm() as scm,
        ThreeReplicas(tmp_path / "cluster", CONTAINER) as replicas,
        Victim(tmp_path / "agent.log") as victim,
    ):
        template = replicas.damaged_volume()
        order = replicas.reconcile_command()
        config = write_config(tmp_path / "whole.toml", tmp_path / "whole", scm.address)
        replicas.copy(template, tmp_path / "whole")
        victim.start_counted(config)
        assert "converged" == reconcile(scm, order, 1).reconcile.result
        steps = steps_between(1, victim.stop()["steps"], POINTS)
        killed = 0

        for number, step in enumerate(steps):
            volume = tmp_path / f"run{number}"
            replicas.copy(template, volume)
            config = write_config(tmp_path / "run.toml", volume, scm.address)
            killed += repair_until_killed(victim, scm, config, order, step, 1000 + number)
            address = victim.start(config)
            with Peer(address) as peer:
                replicas.assert_undamaged_blocks(peer)
                status = reconcile(scm, order, 2000 + number)
                assert status.reconcile.result in {"converged", "nothing_to_do"}, status
                replicas.assert_all_blocks(peer)
            assert 0 == victim.stop()["signal"]
            assert_clean(volume)
            shutil.rmtree(volume)

    assert killed >= len(steps) * 0.9, "the faults were not injected"


def reconcile(scm: ScriptedScm, order: scm_pb2.Command, command_id: int) -> scm_pb2.CommandStatus:
    """Order a reconcile and wait for its answer."""
    command = scm_pb2.Command()
    command.CopyFrom(order)
    command.command_id = command_id
    scm.order(command)
    status = scm.wait_for(command_id)
    assert status is not None, "the command was not answered"
    return status


def repair_until_killed(
    victim: Victim,
    scm: ScriptedScm,
    config: Path,
    order: scm_pb2.Command,
    step: int,
    command_id: int,
) -> bool:
    """Start an agent that dies at `step`, and order a reconcile; return whether it died."""
    command = scm_pb2.Command()
    command.CopyFrom(order)
    command.command_id = command_id
    scm.order(command)
    address = victim.start_doomed(config, kill_at=step)
    if address is None:
        scm.withdraw()
        return True
    while not victim.is_over(0.05):
        if command_id in scm.statuses:
            return victim.stop()["signal"] == 9
    scm.withdraw()
    return victim.wait()["signal"] == 9
