"""What must hold where a control plane moves, makes and deletes replicas as it sees fit.

    I1       of each key that was committed, each block is whole on one medium at least, always
    I3, I7   as without a control plane
    I10      after quiet each container of them has all its replicas, closed, whole and equal

A medium is harmed only where two others have the block whole: one may be over-replicated, and the
control plane may be about to delete it.
"""

from typing import Final

from agent.errors import SutureError
from merkle.replica import ReplicaState
from tools.simulation.led.machines import OPTIONS
from tools.simulation.oracle import Held, Oracle

SPARE: Final = 2


class LedOracle(Oracle):
    """All that is known of one schedule."""

    def _whole_on(self, container: int, block: int) -> list[str]:
        places = [Held(node.name, container, block) for node in self.nodes]
        return [place.node for place in places if self.is_whole(place)]

    def may_harm(self, place: Held) -> bool:
        """Whether enough other datanodes have the block whole, on their media."""
        others = [Held(node.name, *place[1:]) for node in self.nodes if node.name != place.node]
        return sum(self._is_lasting(other) for other in others) >= SPARE

    def look(self, where: str) -> None:
        """Check what must hold at any time."""
        for (container, block), truth in self.blocks.items():
            is_owed = truth.is_whole_somewhere and not truth.is_deleted
            if is_owed and not self._whole_on(container, block):
                self._violated("I1", f"{where}: nobody has block {block} of {container}")
        for node in self.nodes:
            if node.is_up:
                self._look_at(node, where)

    def lost_key(self, number: int, place: tuple[int, int], error: SutureError) -> None:
        """The control plane does not know a key that was committed."""
        self._violated("I1", f"key-{number} in container {place[0]} is not found: {error}")

    def is_settled(self) -> bool:
        """Whether all is as it must be after quiet."""
        return not self.unsettled()

    def unsettled(self) -> list[str]:
        """Return what is not yet as it must be after quiet."""
        found = []
        for (container, block), truth in self.blocks.items():
            if truth.is_whole_somewhere and not truth.is_deleted:
                count = len(self._whole_on(container, block))
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
        """Check what must hold after quiet."""
        for what in self.unsettled():
            self._violated("I10", f"after quiet {what}")
