"""The promises that hold if a control plane moves, creates and deletes replicas, and their checks.

- I1: of each committed key, each block is intact on at least one disk, at any time.
- I3 and I7: as without a control plane.
- I10: after the quiet phase, each container of committed keys has all its replicas on datanodes in
  service. The replicas are closed, intact and equal. Each datanode that was ordered to leave may
  go.

A copy of a block is damaged only if two other datanodes have the block intact, with its row. One of
these replicas may be surplus, and the control plane may be about to delete it. A datanode leaves
permanently only if other datanodes have each of its blocks intact, with its row.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from merkle.replica import ContainerId, ReplicaState
from suture.errors import SutureError
from tools.simulation.oracle import Held, Oracle, Truth
from tools.simulation.whole_cluster.machines import OPTIONS

SPARE: Final = 2
OUT: Final = "DECOMMISSIONED"
RESTING: Final = "IN_MAINTENANCE"


@dataclass(slots=True)
class LedOracle(Oracle):
    """The expected state of a schedule with a control plane."""

    out: dict[str, str] = field(default_factory=dict)  # operational states of nodes not in service
    rowless: set[Held] = field(default_factory=set)  # blocks whose row the index lost

    def _has_row(self, place: Held) -> bool:
        node = self._node(place.node)
        if not node.is_up:
            return False
        with suppress(SutureError):
            rows = node.store.view(ContainerId(place.container)).block_rows()
            return any(block_id == place.block for block_id, _ in rows)
        return False

    def _whole_on(self, container: int, block: int) -> list[str]:
        places = [Held(node.name, container, block) for node in self.nodes]
        return [place.node for place in places if self.is_whole(place)]

    def _lenders(self, place: Held) -> int:
        """Return the number of other datanodes that have a block intact on their disks, with its
        row."""
        others = [Held(node.name, *place[1:]) for node in self.nodes if node.name != place.node]
        return sum(self._is_lasting(other) and not self._is_rowless(other) for other in others)

    def _is_rowless(self, place: Held) -> bool:
        """Return True if the index of the datanode is known to lack the row of a block. The row was
        lost on this datanode, or on the datanode from which the replica was copied."""
        is_known = self._node(place.node).is_up
        return place in self.rowless or (is_known and not self._has_row(place))

    def may_harm(self, place: Held) -> bool:
        """Return True if enough other datanodes have the block intact."""
        return self._lenders(place) >= SPARE

    def may_lose_row(self, place: Held) -> bool:
        """Return True if enough other datanodes have the block intact, with its row."""
        return self.may_harm(place)

    def loses_row(self, place: Held) -> None:
        """Record that a datanode's index has lost the row of a block."""
        self.rowless.add(place)
        self.ever_harmed.add(place)

    def may_leave(self, name: str) -> bool:
        """Return True if a datanode may disappear, because other datanodes have intact copies of
        all needed blocks and of all blocks that are intact on it. This includes blocks without a
        known key: the key may exist, because the answer to a commit or a delete was lost."""
        for place, truth in self.blocks.items():
            here = Held(name, *place)
            if self._lenders(here):
                continue
            if self._is_owed(truth) or self.is_whole(here):
                return False
        return True

    @staticmethod
    def _is_owed(truth: Truth) -> bool:
        return truth.is_whole_somewhere and not truth.is_deleted

    def is_to_go(self, truth: Truth) -> bool:
        """Return True if the control plane deletes the block, because its delete was ordered or it
        was never committed."""
        return not self._is_owed(truth)

    def look(self, where: str) -> None:
        """Check the promises that must hold at any time."""
        self.rowless -= {place for place in self.rowless if self._has_row(place)}
        for (container, block), truth in self.blocks.items():
            if self._is_owed(truth) and not self._whole_on(container, block):
                self._violated("I1", f"{where}: nobody has block {block} of {container}")
        for node in self.nodes:
            if node.is_up:
                self._look_at(node, where)

    def lost_key(self, key: str, place: tuple[int, int], error: Exception) -> None:
        """Record that a committed key cannot be read."""
        self._violated("I1", f"{key} in container {place[0]} is not found: {error}")

    def is_settled(self) -> bool:
        """True if all promises of the quiet phase hold."""
        return not self.unsettled()

    def is_out(self, name: str) -> bool:
        """Return True if a datanode has left service, so that its replicas do not count."""
        return self.out.get(name) == OUT

    def departing(self) -> list[str]:
        """Return the datanodes that were ordered to leave or to go into maintenance, and have not
        done so."""
        return [
            f"{name} is {state}" for name, state in self.out.items() if state not in {OUT, RESTING}
        ]

    def unsettled(self) -> list[str]:
        """Return texts about the promises of the quiet phase that do not hold yet; an empty list if
        all hold."""
        found = self.departing()
        out = {node.name for node in self.nodes if self.is_out(node.name)}
        for (container, block), truth in self.blocks.items():
            if self._is_owed(truth):
                count = len(set(self._whole_on(container, block)) - out)
                if count < OPTIONS.replication_factor:
                    found.append(f"block {block} of container {container} is whole on {count}")
        for container in sorted({container for container, _ in self.blocks}):
            found += self._unequal(container)
        return found

    def _unequal(self, container: int) -> list[str]:
        roots, found = set(), []
        for node in self.nodes:
            if not node.is_up:
                return [f"{node.name} is down"]
            if self.is_out(node.name):
                continue  # its replicas have been copied, and do not count
            for facts in node.store.replicas(container, 1):
                if facts.container_id != container:
                    continue
                if facts.tree is not None and facts.state is ReplicaState.CLOSED:
                    roots.add((facts.tree.root, facts.tree.tombstones_checksum))
                else:
                    found.append(f"container {container} of {node.name} is {facts.state}")
                if facts.finding_count:
                    found.append(f"container {container} of {node.name} has findings")
        return found + ([f"container {container} has {len(roots)} roots"] if len(roots) > 1 else [])

    def converged(self) -> None:
        """Check the promises of the quiet phase."""
        for what in self.unsettled():
            self._violated("I10", f"after quiet {what}")
