"""The expected state, from clients' answers and injected damage, and the promises to check.

The oracle knows the bytes of each block, the datanodes that acknowledged it, and the datanodes
whose copy was damaged since. It reads the files itself, never through product code.

- I1 and I2: a datanode has each block that it acknowledged or had intact, unless its copy was
  damaged or the delete was ordered.
- I3: no finding reports an undamaged copy as corrupt.
- I5: deleted blocks do not reappear, and generations only grow.
- I10: after the quiet phase all replicas are equal and intact.

A copy is damaged only if another datanode has the block intact, because the loss of all copies
would not be a fault of the product.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId, ReplicaState
from scanner.finding import ScanFinding, Verdict
from suture.errors import SutureError
from tools.simulation.machine import Machine


class DiskHost(Machine):
    """A machine with replicas."""

    @property
    @abstractmethod
    def store(self) -> ReplicaStore:
        """The store of the running process."""

    @abstractmethod
    def block_file(self, container_id: ContainerId, block_id: BlockId) -> Path:
        """Return the path of a block's file, whether or not it exists."""


class Held(NamedTuple):
    """A block of a container on a node."""

    node: str
    container: int
    block: int


@dataclass(slots=True)
class Truth:
    """The expected content and state of a block."""

    data: bytes
    is_deleted: bool = False
    is_whole_somewhere: bool = False  # at least one datanode acknowledged the block


@dataclass(slots=True)
class Oracle:
    """The expected state of one schedule."""

    nodes: Sequence[DiskHost]
    blocks: dict[tuple[int, int], Truth] = field(default_factory=dict)
    held: set[Held] = field(default_factory=set)
    harmed: set[Held] = field(default_factory=set)
    ever_harmed: set[Held] = field(default_factory=set)
    gone: set[Held] = field(default_factory=set)  # acknowledged deletes
    generations: dict[tuple[str, int], int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    leaving: set[tuple[str, int]] = field(default_factory=set)  # replicas that may be gone
    counts_copies: bool = False  # True if replicas are deleted: one of each block must remain
    keeps_replicas: bool = True  # False if complete replicas are deleted and recreated

    # Events.

    def begins(self, container: int, block: int, data: bytes) -> None:
        """Record that a client begins to write a block."""
        self.blocks[container, block] = Truth(data)

    def acknowledged(self, node: str, container: int, block: int) -> None:
        """Record that a datanode acknowledged a block."""
        self.held.add(Held(node, container, block))
        self.blocks[container, block].is_whole_somewhere = True

    def mended(self, place: Held) -> None:
        """Record that a datanode reports a repair of a block. If the block is intact now, it counts
        as undamaged again, and must remain intact."""
        if (place.container, place.block) in self.blocks and self.is_whole(place):
            self.held.add(place)
            self.harmed.discard(place)

    def drops(self, node: str, container: int) -> None:
        """Record that a datanode is ordered to delete its replica. From now on, this replica does
        not count as a copy."""
        self.leaving.add((node, container))
        self.counts_copies = True

    def kept(self, node: str, container: int) -> None:
        """Record that a datanode kept the replica that it was ordered to delete."""
        self.leaving.discard((node, container))

    def dropped(self, node: str, container: int) -> None:
        """Record that a datanode deleted its replica."""
        self.leaving.add((node, container))
        for places in (self.held, self.harmed, self.gone):
            places -= {place for place in places if place[:2] == (node, container)}
        self.generations.pop((node, ContainerId(container)), None)

    def ordered(self, container: int, block: int) -> None:
        """Record that the delete of a block was ordered."""
        if (container, block) in self.blocks:
            self.blocks[container, block].is_deleted = True

    def is_ordered(self, container: int, block: int) -> bool:
        """Return True if the delete of a block was ordered."""
        truth = self.blocks.get((container, block))
        return truth is not None and truth.is_deleted

    def may_harm(self, place: Held) -> bool:
        """Return True if the copy at `place` may be damaged, because another datanode has the block
        intact and durable."""
        return any(
            other.node != place.node and other not in self.harmed and self._is_lasting(other)
            for other in self.held
            if (other.container, other.block) == (place.container, place.block)
            and (other.node, other.container) not in self.leaving
        )

    def harm(self, place: Held) -> None:
        """Record that the copy of a block on a datanode was damaged."""
        self.harmed.add(place)
        self.ever_harmed.add(place)

    # Checks.

    def _node(self, name: str) -> DiskHost:
        return next(node for node in self.nodes if node.name == name)

    def path(self, place: Held) -> Path:
        """Return the path of a block's file on a datanode."""
        node = self._node(place.node)
        return node.block_file(ContainerId(place.container), BlockId(place.block))

    def is_whole(self, place: Held) -> bool:
        """Return True if the file of a block on the disk has the expected bytes."""
        truth = self.blocks[place.container, place.block]
        try:
            data = self._node(place.node).disk.bytes_of(self.path(place))
            return data[: len(truth.data)] == truth.data
        except OSError:
            return False

    def _is_lasting(self, place: Held) -> bool:
        return self.is_whole(place) and self._node(place.node).disk.is_settled(self.path(place))

    def look(self, where: str) -> None:
        """Check the promises that must hold at any time. The caller ensures that no process is in
        the middle of a change."""
        for place in sorted(self.held):
            truth = self.blocks[place.container, place.block]
            if truth.is_deleted or place[:2] in self.leaving:
                continue
            if place in self.harmed:
                if self._is_lasting(place):
                    self.harmed.discard(place)
            elif not self.is_whole(place):
                self._violated(
                    "I1",
                    f"{where}: {place.node} has lost block {place.block} of container "
                    f"{place.container}, which it had acknowledged",
                )
                self.harmed.add(place)  # report it once
        if self.counts_copies:
            self._look_for_last_copies(where)
        for node in self.nodes:
            if node.is_up:
                self._look_at(node, where)

    def _look_for_last_copies(self, where: str) -> None:
        for (container, block), truth in self.blocks.items():
            if truth.is_deleted or not truth.is_whole_somewhere:
                continue
            places = [Held(node.name, container, block) for node in self.nodes]
            if not any(self.is_whole(place) for place in places):
                self._violated(
                    "I1", f"{where}: no medium has block {block} of container {container} any more"
                )
                truth.is_whole_somewhere = False  # report it once

    def _look_at(self, node: DiskHost, where: str) -> None:
        store = node.store
        for container_id in store.replica_ids():
            try:
                generation = store.generation(container_id)
                tombstones = set(store.view(container_id).tombstones())
                rows = {block_id for block_id, _ in store.view(container_id).block_rows()}
            except SutureError:
                continue
            before = self.generations.get((node.name, container_id), 0)
            if generation < before and self.keeps_replicas:
                self._violated("I5", f"{where}: {node.name} went back to generation {generation}")
            self.generations[node.name, container_id] = generation
            gone = {BlockId(one.block) for one in self.gone if one[:2] == (node.name, container_id)}
            if self.keeps_replicas and (gone & rows or gone - tombstones):
                self._violated("I5", f"{where}: {node.name} has a deleted block again: {gone}")
            self.gone |= {
                Held(node.name, container_id, block_id)
                for block_id in tombstones
                if (container_id, block_id) in self.blocks
            }
            self._check_deletes(node.name, container_id, tombstones, where)

    def _check_deletes(
        self, node: str, container_id: ContainerId, tombstones: set[BlockId], where: str
    ) -> None:
        for block_id in tombstones:
            truth = self.blocks.get((container_id, block_id))
            if truth is not None and not self.is_to_go(truth):
                self._violated(
                    "I7",
                    f"{where}: {node} deleted block {block_id} of container {container_id} "
                    "and nobody ordered it",
                )

    def is_to_go(self, truth: Truth) -> bool:
        """Return True if a delete of the block was ordered."""
        return truth.is_deleted

    def judged(self, node: str, findings: Sequence[ScanFinding], where: str) -> None:
        """Check promise I3 for the findings of a scan."""
        for finding in findings:
            place = Held(node, finding.container_id, finding.block_id)
            if finding.verdict is Verdict.CORRUPT and place in self.held - self.ever_harmed:
                self._violated("I3", f"{where}: {node} calls corrupt what is whole: {finding}")

    def converged(self) -> None:
        """Check the promises that must hold after the quiet phase (I10)."""
        for container in sorted({container for container, _ in self.blocks}):
            for what in self.differences(ContainerId(container)):
                self._violated("I10", f"after quiet {what}")

    def differences(self, container_id: ContainerId) -> Iterator[str]:
        """Yield the reasons why a container's replicas are not intact, equal and without findings.
        All their datanodes must be up."""
        for (container, block), truth in self.blocks.items():
            if container == container_id and truth.is_whole_somewhere and not truth.is_deleted:
                yield from self._missing(container_id, block)
        roots = set()
        for node in self.nodes:
            store = node.store
            if not self._has_replica(node, container_id):
                continue
            facts = store.replica(container_id)
            roots.add(
                None if facts.tree is None else (facts.tree.root, facts.tree.tombstones_checksum)
            )
            if facts.state is not ReplicaState.CLOSED or facts.finding_count:
                faults = [finding.fault.value for finding in store.findings(container_id)]
                yield f"container {container_id} of {node.name} is {facts.state}, {faults}"
        if len(roots) > 1:
            yield f"container {container_id} has {len(roots)} roots"

    def _missing(self, container_id: ContainerId, block: int) -> Iterator[str]:
        for node in self.nodes:
            if self._has_replica(node, container_id) and not self.is_whole(
                Held(node.name, container_id, block)
            ):
                yield f"{node.name} has not block {block} of container {container_id}"

    def _has_replica(self, node: DiskHost, container_id: ContainerId) -> bool:
        """Return True if a datanode has a replica of a container whose delete has not begun."""
        if container_id not in node.store.replica_ids():
            return False
        is_leaving = (node.name, container_id) in self.leaving
        return not is_leaving or node.store.replica(container_id).state is not ReplicaState.DELETED

    def crashed(self, where: str, error: BaseException) -> None:
        """Record an exception that product code must never raise."""
        self._violated("no crash", f"{where}: {type(error).__name__}: {error}")

    def _violated(self, law: str, what: str) -> None:
        self.violations.append(f"{law}: {what}")
