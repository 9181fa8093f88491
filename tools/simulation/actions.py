"""Actions of clients, the control plane and disks within a burst, as one function per kind of
event.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Final, Protocol

import grpc

from agent.commands import block_delete
from agent.plan.reconcile_outcome import ChunkResult
from merkle.checksum import window_checksums
from merkle.replica import Bcsid, BlockData, BlockId, ChecksumType, ChunkInfo, ContainerId
from suture.errors import Code, SutureError, UnavailableError
from suture.wire.clients.peer import Peer
from suture.wire.mapping import codec, new_blocks_message
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tools.simulation.cluster import PLAIN, QUICK, Datanode
from tools.simulation.events import Event, Kind, placed_on
from tools.simulation.faults import flipped
from tools.simulation.oracle import DiskHost, Held, Oracle

WINDOW_BYTES: Final = 1024
CALL_S: Final = 5.0
MENDED: Final = frozenset({ChunkResult.REPAIRED, ChunkResult.SALVAGED})
CHUNK_BYTES_MAX: Final = 6_000
SAFE_CODES: Final = frozenset({Code.NOT_PROVEN, Code.BUSY})  # the delete has not begun


class RunLog(Protocol):
    """A running schedule, with its oracle and its record."""

    oracle: Oracle
    where: str

    def note(self, line: str) -> None:
        """Add a line to the trace."""

    def count(self, what: str, count: int = 1) -> None:
        """Count an event."""


class DatanodeRun(RunLog, Protocol):
    """A schedule of datanodes without a control plane."""

    nodes: list[Datanode]
    held_by: dict[int, set[str]]

    def holders(self, event: Event) -> set[str]:
        """Return the names of the datanodes that were ordered to have a replica of the event's
        container."""


def content(event: Event) -> list[bytes]:
    """Return the chunks that an event writes."""
    dice = Random(f"{event.seed} content")
    return [dice.randbytes(dice.randint(200, CHUNK_BYTES_MAX)) for _ in range(event.amount)]


def block_of(event: Event, parts: list[bytes]) -> BlockData:
    """Return the row of the block that an event writes, with the chunks `parts`."""
    chunks, offset = [], 0
    for part in parts:
        sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES, part)
        chunks.append(ChunkInfo(offset, len(part), ChecksumType.CRC32C, WINDOW_BYTES, sums))
        offset += len(part)
    return BlockData(BlockId(event.block), Bcsid(event.block), tuple(chunks))


def write(run: DatanodeRun, event: Event) -> None:
    """Write a block to all datanodes of its container; record which of them acknowledged it."""
    parts = content(event)
    run.oracle.begins(event.container, event.block, b"".join(parts))
    for number in placed_on(event.container):
        node = run.nodes[number]
        peer = Peer(node.address, timeouts=QUICK, security=PLAIN)
        try:
            block, owner = block_of(event, parts), ContainerId(event.container)
            way = write_block(peer, owner, block, parts, event.seed)
        except (grpc.RpcError, SutureError) as error:
            run.note(f"   write to {node.name} failed: {error}")
            continue
        run.count(f"blocks written {way}")
        run.oracle.acknowledged(node.name, event.container, event.block)


def write_block(
    peer: Peer, container_id: ContainerId, block: BlockData, parts: list[bytes], seed: int
) -> str:
    """Write a block to one datanode, in a way that `seed` chooses; return the name of the way. If
    the block is not acknowledged, raise the error of the call."""
    create = datanode_pb2.CreateContainerRequest(container_id=container_id)
    peer.stub.CreateContainer(create, timeout=CALL_S)
    way = Random(f"{seed} way").choice((_by_chunk, _at_once, _in_messages))
    way(peer, codec.block_message(container_id, block), block, parts)
    return way.__name__.strip("_").replace("_", " ")


def _by_chunk(
    peer: Peer, message: container_pb2.BlockData, block: BlockData, parts: list[bytes]
) -> None:
    """Write the chunks of a block in separate calls, then commit the block."""
    for chunk, part in zip(block.chunks, parts, strict=True):
        request = datanode_pb2.WriteChunkRequest(
            block_id=message.block_id, chunk=codec.chunk_message(chunk), data=part
        )
        peer.stub.WriteChunk(request, timeout=CALL_S)
    peer.stub.PutBlock(datanode_pb2.PutBlockRequest(block=message), timeout=CALL_S)


def _at_once(
    peer: Peer, message: container_pb2.BlockData, block: BlockData, parts: list[bytes]
) -> None:
    """Write a block in one message, as clients do with small blocks."""
    _send(peer, message, block.chunks, [parts])


def _in_messages(
    peer: Peer, message: container_pb2.BlockData, block: BlockData, parts: list[bytes]
) -> None:
    """Write a block in one message per chunk, as clients do with large blocks."""
    _send(peer, message, block.chunks, [[part] for part in parts])


def _send(
    peer: Peer,
    message: container_pb2.BlockData,
    chunks: Sequence[ChunkInfo],
    groups: list[list[bytes]],
) -> None:
    """Write the chunks of a block in one call, one group of chunks per message."""

    def messages() -> Iterator[bytes]:
        begin = 0
        for group in groups:
            end = begin + len(group)
            piece = new_blocks_message.new_block_message(
                message.block_id, chunks[begin:end], is_whole=end == len(chunks), metadata=()
            )
            yield new_blocks_message.encode([piece], group)
            begin = end

    call = peer.begin_blocks(messages(), CALL_S)
    try:
        call.result(timeout=CALL_S)
    except grpc.FutureTimeoutError as error:
        call.cancel()
        raise UnavailableError(Code.UNAVAILABLE, f"no answer for {CALL_S:g} s") from error


def close(run: DatanodeRun, event: Event) -> None:
    """Close a container on all its datanodes."""
    bcsid = max(
        (block for owner, block in run.oracle.blocks if owner == event.container), default=0
    )
    for number in placed_on(event.container):
        node = run.nodes[number]
        peer = Peer(node.address, timeouts=QUICK, security=PLAIN)
        request = datanode_pb2.CloseContainerRequest(container_id=event.container, bcsid=bcsid)
        try:
            peer.stub.CloseContainer(request, timeout=CALL_S)
        except grpc.RpcError as error:
            run.note(f"   close on {node.name} failed: {error}")


def scan(run: DatanodeRun, event: Event) -> None:
    """Scan a container on one datanode."""
    node = run.nodes[event.node]
    if not node.is_up:
        return
    with node.running():
        report = node.scan(ContainerId(event.container))
    run.oracle.judged(node.name, report.findings, run.where)
    run.count("scans")
    run.count("findings", report.finding_count)


def reconcile(run: DatanodeRun, event: Event) -> None:
    """Reconcile one datanode's replica with those of all other datanodes of its container."""
    node = run.nodes[event.node]
    others = [
        other for other in run.nodes if other is not node and other.name in run.holders(event)
    ]
    if not node.is_up or not others:
        return
    with node.running():
        result = node.reconcile(ContainerId(event.container), others)
    run.count("reconciles")
    for chunk in result.chunks:
        run.count(f"chunks {chunk.result.value}")
        if chunk.result in MENDED:
            run.oracle.mended(Held(node.name, event.container, chunk.block_id))


def delete(run: DatanodeRun, event: Event) -> None:
    """Order the delete of a block, and execute it on each datanode that is up."""
    if (event.container, event.block) not in run.oracle.blocks:
        return
    run.oracle.ordered(event.container, event.block)
    for node in run.nodes:
        if node.is_up and node.name in run.holders(event):
            delete_on(run, node, event.container, event.block)


def delete_on(run: DatanodeRun, node: Datanode, container: int, block: int) -> None:
    """Execute the delete of a block on a datanode, which must be up."""
    order = scm_pb2.DeleteTransaction(
        transaction_id=block, container_id=container, local_ids=[block]
    )
    assert node.agent is not None, "it is up"
    store, leases = node.agent.store, node.agent.leases
    with node.running():
        [result] = block_delete.delete_blocks(store, leases, [order], stop=lambda: False)
    if result.done and result.block_count:
        run.oracle.gone.add(Held(node.name, container, block))
        run.count("deletes")


def replicate(run: DatanodeRun, event: Event) -> None:
    """Push a replica to a datanode that has none."""
    source = run.nodes[event.node]
    targets = [node for node in run.nodes if node.name not in run.holders(event)]
    if not source.is_up or not targets or source.name not in run.holders(event):
        return
    assert source.agent is not None, "it is up"
    run.held_by[event.container].add(targets[0].name)
    with source.running():
        peer = Peer(targets[0].address, timeouts=QUICK, security=PLAIN)
        source.agent.replicator.replicate(ContainerId(event.container), peer, stop=lambda: False)
    run.count("replicates")
    for (container, block), truth in list(run.oracle.blocks.items()):
        place = Held(targets[0].name, container, block)
        if container == event.container and not truth.is_deleted and run.oracle.is_whole(place):
            run.oracle.held.add(place)


def rot(run: DatanodeRun, event: Event) -> None:
    """Damage a block on a disk, as `rot_at` does."""
    rot_at(run, run.nodes[event.node], event.container, event.block, event.seed)


def rot_at(run: RunLog, node: DiskHost, container: int, block: int, seed: int) -> None:
    """Damage a block on a disk, if enough other datanodes have the block intact."""
    dice = Random(f"{seed} rot")
    place = Held(node.name, container, block)
    path = run.oracle.path(place)
    if (container, block) not in run.oracle.blocks or not run.oracle.may_harm(place):
        return
    if not path.is_file() or not path.stat().st_size:
        return
    way = dice.choice(("flip", "zeros", "cut", "misdirected", "grown", "lost"))
    run.count(f"rot: {way}")
    run.note(f"-- rot, {way}: {path.name} of container {container} on {node.name}")
    if way == "grown":
        run.oracle.ever_harmed.add(place)  # not the block's bytes, but a scan has to tell of it
    else:
        run.oracle.harm(place)
    if way == "lost":
        node.disk.forget(path)
    else:
        node.disk.replace_durable(path, rotten(dice, way, path))


def rot_beneath(run: DatanodeRun, event: Event) -> None:
    """Damage a block on a disk, or make it unreadable, while the page cache keeps the intact
    bytes."""
    node, dice = run.nodes[event.node], Random(f"{event.seed} beneath")
    place = Held(node.name, event.container, event.block)
    if (event.container, event.block) not in run.oracle.blocks or not run.oracle.may_harm(place):
        return
    path = run.oracle.path(place)
    if not path.is_file() or not path.stat().st_size:
        return
    way = dice.choice(("flip", "zeros", "stale", "dead"))
    run.count(f"beneath the cache: {way}")
    run.note(f"-- beneath the cache, {way}: {path.name} of {event.container} on {node.name}")
    run.oracle.harm(place)
    data = bytes(path.stat().st_size) if way in {"stale", "dead"} else rotten(dice, way, path)
    node.disk.harm_beneath(path, data, is_dead=way == "dead")


def drop(run: DatanodeRun, event: Event) -> None:
    """Order the delete of a datanode's replica. The order names all other datanodes with a
    replica."""
    node = run.nodes[event.node]
    if not node.is_up or event.container not in node.store.replica_ids():
        return
    others = [
        other for other in run.nodes if other is not node and other.name in run.holders(event)
    ]
    has_begun = (node.name, event.container) in run.oracle.leaving
    run.oracle.drops(node.name, event.container)
    try:
        with node.running():
            node.drop(ContainerId(event.container), others)
    except SutureError as error:
        run.count(f"drops refused: {error.code}")
        if error.code in SAFE_CODES and not has_begun:
            run.oracle.kept(node.name, event.container)
        raise
    run.oracle.dropped(node.name, event.container)
    run.count("drops")


def rotten(dice: Random, way: str, path: Path) -> bytes:
    """Return the content of a file after a damage of the kind `way`."""
    data = path.read_bytes()
    at = dice.randrange(len(data))
    match way:
        case "flip":
            return flipped(dice, data)
        case "zeros":
            return data[:at] + bytes(min(512, len(data) - at)) + data[at + 512 :]
        case "cut":
            return data[:at]
        case "misdirected":
            strange = dice.randbytes(512)
            return data[:at] + strange + data[at + 512 :]
        case _:
            return data + dice.randbytes(dice.randint(1, 600))


def rot_tree(run: DatanodeRun, event: Event) -> None:
    """Flip a bit of a tree file, as `rot_tree_at` does."""
    rot_tree_at(run, run.nodes[event.node], event.container, event.seed)


def rot_tree_at(run: RunLog, node: DiskHost, container: int, seed: int) -> None:
    """Flip a bit of a tree file on the disk. The tree is then invalid, but no data is damaged."""
    chunks = node.block_file(ContainerId(container), BlockId(1)).parent
    path = chunks.parent / "metadata" / f"{container}.tree"
    if path.is_file() and path.stat().st_size:
        run.count("rot: tree")
        run.note(f"-- rot of the tree of container {container} on {node.name}")
        node.disk.replace_durable(path, flipped(Random(seed), path.read_bytes()))


ACTIONS: Final[Mapping[Kind, Callable[[DatanodeRun, Event], None]]] = {
    Kind.WRITE: write,
    Kind.CLOSE: close,
    Kind.SCAN: scan,
    Kind.RECONCILE: reconcile,
    Kind.DELETE: delete,
    Kind.REPLICATE: replicate,
    Kind.ROT: rot,
    Kind.ROT_TREE: rot_tree,
    Kind.ROT_BENEATH: rot_beneath,
    Kind.DROP: drop,
}
"""Actions that take time and run in parallel within a burst."""
