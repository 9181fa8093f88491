"""Schedules with erasure-coded keys. The real client writes groups of three shards over four
datanodes, and the control plane orders the rebuilding of lost shards.

The oracle computes the shards of a group itself, never through product code: the data cells
alternate between two shards, and the third has their exclusive or.

- I1: of each committed key, two of the three shards are intact on disks, at any time.
- I10: after the quiet phase all three shards are intact, closed and without findings, and the real
  reader returns the key.

A container without any commit is not checked. If a client gives up a write, the data that it wrote
to some datanodes cannot be computed and is not needed.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

from merkle.replica import BlockId, ContainerId, ReplicaState
from suture.client.block_messages import Placed
from suture.client.ecreader import GroupReader
from suture.client.ecwriter import EcWriterSession
from suture.client.fan_out import Open
from suture.client.file_pieces import SourceFile
from suture.client.writer import StoredFile
from suture.ec.scheme import Scheme, parse_scheme
from suture.errors import SutureError
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.peer import Peer
from suture.wire.clients.scm import ScmClient
from suture.wire.mapping.rpc_services import Stub
from suture.wire.v1 import scm_pb2
from tools.simulation.cluster import PLAIN, QUICK
from tools.simulation.events import Event
from tools.simulation.oracle import Held, Truth
from tools.simulation.simulated_os.primitives import Executor
from tools.simulation.whole_cluster.machines import SCM_ADDRESS
from tools.simulation.whole_cluster.oracle import LedOracle
from tools.simulation.whole_cluster.run import LedRun

SCHEME: Final = parse_scheme("xor-2-1-1k")
CELL_BYTES: Final = 1024
DATA_COUNT: Final = 2
SHARDS: Final = (1, 2, 3)
KEY_BYTES: Final = (CELL_BYTES + 1, 6 * CELL_BYTES)  # so that no shard is empty


def shards_of(data: bytes) -> dict[int, bytes]:
    """Return the expected content of each shard of a group."""
    cells = [data[at : at + CELL_BYTES] for at in range(0, len(data), CELL_BYTES)]
    first, second = cells[0::2], cells[1::2]
    parity = []
    for number, left in enumerate(first):
        right = second[number] if number < len(second) else b""
        padded = right.ljust(len(left), b"\0")
        parity.append(bytes(a ^ b for a, b in zip(left, padded, strict=True)))
    return {1: b"".join(first), 2: b"".join(second), 3: b"".join(parity)}


@dataclass(slots=True)
class Group(Truth):
    """A block group. `data` is the data of the key."""

    shards: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class CodedOracle(LedOracle):
    """The promises about shards, and their checks."""

    def index_of(self, place: Held) -> int | None:
        """Return the index of the shard of a group that is intact on a datanode's disk; None if
        there is none."""
        group = self.blocks[place.container, place.block]
        assert isinstance(group, Group), "all are"
        try:
            data = self._node(place.node).disk.bytes_of(self.path(place))
        except OSError:
            return None
        for index, shard in group.shards.items():
            if data[: len(shard)] == shard:
                return index
        return None

    def is_whole(self, place: Held) -> bool:
        """Return True if a datanode's disk has any shard of a group intact."""
        return self.index_of(place) is not None

    def _indexes(self, container: int, block: int, *, without: str = "") -> set[int]:
        """Return the indexes of the shards that are intact, durable, and known to their
        datanodes."""
        places = [Held(node.name, container, block) for node in self.nodes if node.name != without]
        lasting = [p for p in places if self._is_lasting(p) and p not in self.rowless]
        return {self.index_of(place) or 0 for place in lasting if self._is_committed(place)}

    def _has_row(self, place: Held) -> bool:
        """Return True if a datanode has the complete row of a shard's block. During a
        reconstruction, the row has only a part of the block."""
        group = self.blocks[place.container, place.block]
        assert isinstance(group, Group), "all are"
        node = self._node(place.node)
        if not node.is_up:
            return False
        store = node.store
        with suppress(SutureError):
            index = store.replica(ContainerId(place.container)).replica_index
            block = store.view(ContainerId(place.container)).block(BlockId(place.block))
            return block.length_bytes >= len(group.shards[index])
        return False

    def _is_committed(self, place: Held) -> bool:
        """Return True if a datanode has a committed block, not only a part from an unfinished
        reconstruction. Also return True if the datanode is down, because it cannot be asked."""
        return not self._node(place.node).is_up or self._has_row(place)

    def may_harm(self, place: Held) -> bool:
        """Return True if a group remains readable after the datanode at `place` loses its shard."""
        return len(self._indexes(*place[1:], without=place.node)) >= DATA_COUNT

    def may_lose_row(self, place: Held) -> bool:
        """Return True if a group remains readable without a shard's row, and a tree shows the loss.

        Before a container is closed, no tree shows the loss, because no other replica has the same
        root.
        """
        with suppress(SutureError):
            facts = self._node(place.node).store.replica(ContainerId(place.container))
            return facts.tree is not None and self.may_harm(place)
        return False

    def may_leave(self, name: str) -> bool:
        """Return True if a datanode may disappear, because all groups that are readable now remain
        readable without it. This includes groups without a known key: the key may exist, because
        the answer to a commit or a delete was lost."""
        for place, truth in self.blocks.items():
            if len(self._indexes(*place, without=name)) >= DATA_COUNT:
                continue
            if self._is_owed(truth) or len(self._indexes(*place)) >= DATA_COUNT:
                return False
        return True

    def look(self, where: str) -> None:
        """Check the promises that must hold at any time."""
        self.rowless -= {place for place in self.rowless if self._has_row(place)}
        for (container, block), truth in self.blocks.items():
            places = [Held(node.name, container, block) for node in self.nodes]
            indexes = {self.index_of(place) for place in places} - {None}
            if self._is_owed(truth) and len(indexes) < DATA_COUNT:
                what = f"of block group {block} of {container} are left: {sorted(indexes, key=str)}"
                self._violated("I1", f"{where}: {what}")
                truth.is_whole_somewhere = False  # report it once
        for node in self.nodes:
            if node.is_up:
                self._look_at(node, where)

    def unsettled(self) -> list[str]:
        """Return the promises of the quiet phase that do not hold yet."""
        found = [f"{node.name} is down" for node in self.nodes if not node.is_up]
        if found:
            return found
        found = self.departing()
        used = {place[0] for place, truth in self.blocks.items() if truth.is_whole_somewhere}
        for container in sorted(used):
            found += self._unsettled(ContainerId(container))
        return found

    def _unsettled(self, container_id: ContainerId) -> list[str]:
        found, roots = [], set()
        whole: dict[int, set[int]] = {
            block: set()
            for (container, block), truth in self.blocks.items()
            if container == container_id and self._is_owed(truth)
        }
        for node in self.nodes:
            if self.is_out(node.name) or container_id not in node.store.replica_ids():
                continue
            facts = node.store.replica(container_id)
            if facts.state is not ReplicaState.CLOSED or facts.finding_count:
                found.append(f"container {container_id} of {node.name} is {facts.state}")
            root = None if facts.tree is None else facts.tree.root
            roots.add((facts.replica_index, root))
            for block, indexes in whole.items():
                index = self.index_of(Held(node.name, container_id, block))
                if index == facts.replica_index:
                    indexes.add(index)
                else:
                    what = f"shard {facts.replica_index} of block group {block} of {container_id}"
                    found.append(f"{what} of {node.name} is {index}")
        if len({index for index, _ in roots}) < len(roots):
            found.append(f"container {container_id} has two roots of one shard")
        for block, indexes in whole.items():
            if sorted(indexes) != list(SHARDS):
                found.append(f"block group {block} of container {container_id} has {indexes}")
        return found


class _Session(EcWriterSession):
    """A writer session of the real client that reports each group to the oracle before its first
    byte."""

    def __init__(self, run: "CodedRun", scm: ScmClient, scheme: Scheme) -> None:
        super().__init__(scm, run.dial, run.stream, scheme=scheme)
        self._run = run

    def _write_run(self, run: Sequence[Placed]) -> int:
        [(piece, allocation)] = run
        assert piece.source.data is not None
        place = (allocation.block_id.container_id, allocation.block_id.local_id)
        data = piece.source.data
        self._run.oracle.blocks[place] = Group(data, shards=shards_of(data))
        return super()._write_run(run)


class CodedRun(LedRun):
    """A schedule of a whole cluster whose keys are erasure-coded."""

    oracle_of = CodedOracle

    def dial(self, datanode: NodeAddress) -> Stub:
        """Return the stub of a datanode."""
        return Peer(datanode.address, timeouts=QUICK, security=PLAIN).stub

    def stream(self, datanode: NodeAddress) -> Open:
        """Return a function that starts to write blocks to a datanode."""
        return Peer(datanode.address, timeouts=QUICK, security=PLAIN).begin_blocks

    def _put(self, event: Event) -> None:
        dice = Random(event.seed)
        session = _Session(self, ScmClient(SCM_ADDRESS, security=PLAIN), SCHEME)
        sources = []
        for number in range(event.amount):
            data = dice.randbytes(dice.randint(*KEY_BYTES))
            key = f"key-{event.block}" if not number else f"key-{event.block}-{number}"
            sources.append(SourceFile(key, self.root / key, len(data), data))
        try:
            for stored in session.put(sources, replace=False):
                self._is_stored(stored)
        finally:
            with suppress(SutureError):  # an idle session ends by itself
                session.finish(close=dice.random() < 0.5)

    def _is_stored(self, stored: StoredFile) -> None:
        [location] = stored.blocks
        place = (location.block_id.container_id, location.block_id.local_id)
        self.oracle.blocks[place].is_whole_somewhere = True
        self._keys[stored.key] = place
        self.count("keys")
        self.count("keys of block groups")

    def finished(self) -> None:
        """Read each committed key, like a client."""
        super().finished()
        scm = ScmClient(SCM_ADDRESS, security=PLAIN)
        for key, place in self._keys.items():
            try:
                answer = scm.lookup_key(scm_pb2.LookupKeyRequest(key=key))
                [found] = answer.containers
                reader = GroupReader(
                    ContainerId(found.container_id),
                    parse_scheme(found.scheme),
                    found.replicas,
                    lambda datanode: Peer(datanode.address, timeouts=QUICK, security=PLAIN),
                    Executor(self.scheduler),
                )
                data = self.oracle.blocks[place].data
                parts = list(reader.read(BlockId(place[1]), len(data)))
            except SutureError as error:
                self.led.lost_key(key, place, error)
            else:
                if b"".join(parts) != data:
                    self.led.lost_key(key, place, ValueError("other bytes"))
                self.count("block groups read")
