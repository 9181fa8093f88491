"""Schedules of datanodes without a control plane: clients, scans, reconciles, deletes and
pushes.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from agent.plan.actions import ConfirmedDeletes
from merkle.replica import BlockId, ContainerId, ReplicaState
from tools.simulation.actions import ACTIONS, delete_on
from tools.simulation.cluster import Datanode
from tools.simulation.events import NODES, Event, Kind, placed_on
from tools.simulation.oracle import Oracle
from tools.simulation.simulated_os.fibers import Fiber
from tools.simulation.stage import ScheduleRun

QUIET_ROUNDS: Final = 3
BREAKER_S: Final = 700.0  # time for which a host with bad reads is not trusted


class Run(ScheduleRun):
    """A schedule of datanodes without a control plane."""

    def __init__(self, seed: int, root: Path, *, traced: bool) -> None:
        super().__init__(seed, root, Oracle(()), traced=traced)
        self.nodes = [
            Datanode(number, root, self.scheduler, self.kernel, self.network)
            for number in range(NODES)
        ]
        self.machines = list(self.nodes)
        self.oracle.nodes = self.nodes
        self.held_by: dict[int, set[str]] = defaultdict(set)

    def holders(self, event: Event) -> set[str]:
        """Return the names of the datanodes that were ordered to have a replica of the event's
        container."""
        begun = {self.nodes[number].name for number in placed_on(event.container)}
        return begun | self.held_by[event.container]

    def actions(self) -> Mapping[Kind, Callable[[Event], None]]:
        """Return the actions of clients, the control plane and the disks, by kind of event."""
        return {kind: partial(action, self) for kind, action in ACTIONS.items()}

    def prepared(self) -> None:
        """Start all datanodes."""
        for node in self.nodes:
            node.confirm = self._confirm
            self.start(node)

    def _confirm(self, container_id: ContainerId, asked: Sequence[BlockId]) -> ConfirmedDeletes:
        ordered = {one for one in asked if self.oracle.is_ordered(container_id, one)}
        return ConfirmedDeletes(frozenset(ordered), frozenset(set(asked) - ordered))

    def let_pass(self, fibers: Sequence[Fiber]) -> None:
        """Wait until all fibers are idle."""
        self.scheduler.block(lambda: all(fiber.has_ended for fiber in fibers))
        self.scheduler.block(lambda: len(self.scheduler.fibers) == 1)

    def settle(self) -> None:
        """Execute the commands that a control plane would order, long after the last memory
        fault."""
        self.scheduler.sleep(BREAKER_S)
        self._finish_drops()
        for container in sorted({container for container, _ in self.oracle.blocks}):
            self._settle(ContainerId(container))

    def _finish_drops(self) -> None:
        """Order again the deletes of replicas that began and failed."""
        for node in self.nodes:
            if node.agent is None:  # a failed start is reported at the end
                continue
            for container_id in [one for name, one in self.oracle.leaving if name == node.name]:
                owner = ContainerId(container_id)
                with self.kernel.quiet():
                    is_left = (
                        owner in node.store.replica_ids()
                        and node.store.replica(owner).state is ReplicaState.DELETED
                    )
                if is_left:
                    with self.judged(f"delete on {node.name}"), node.running():
                        node.drop(owner, [])

    def _finish_deletes(self, container_id: ContainerId) -> None:
        """Order again the deletes of blocks that no remaining datanode has received, as a control
        plane does until all datanodes have acknowledged. If a datanode has received the delete, the
        other datanodes must get it from this datanode."""
        having = self._having(container_id)
        with self.kernel.quiet():
            buried = {
                block
                for node in having
                if node.agent is not None
                for block in node.agent.store.view(container_id).tombstones()
            }
        for (container, block), truth in self.oracle.blocks.items():
            if container == container_id and truth.is_deleted and block not in buried:
                for node in having:
                    with self.judged(f"delete of block {block} on {node.name}"):
                        delete_on(self, node, container, block)

    def _settle(self, container_id: ContainerId) -> None:
        for _ in range(QUIET_ROUNDS):
            for node in self._having(container_id):
                assert node.agent is not None, "it is up"
                with self.judged(f"close on {node.name}"), node.running():
                    node.agent.store.close_container(container_id, force=True)
            self._finish_deletes(container_id)
            self._scan_all(container_id)
            for node in self._having(container_id):
                others = [other for other in self._having(container_id) if other is not node]
                with self.judged(f"reconcile on {node.name}"), node.running():
                    node.reconcile(container_id, others)
            if self._is_settled(container_id):
                break
        self._scan_all(container_id)  # scans must not report the last repairs as corrupt

    def _scan_all(self, container_id: ContainerId) -> None:
        for node in self._having(container_id):
            with self.judged(f"scan on {node.name}"), node.running():
                node.scan(container_id)

    def _is_settled(self, container_id: ContainerId) -> bool:
        """Return True if a container's replicas are intact and equal, so that more rounds would
        change nothing."""
        if not all(node.is_up for node in self.nodes):
            return False
        with self.kernel.quiet():
            return not any(self.oracle.differences(container_id))

    def _having(self, container_id: ContainerId) -> list[Datanode]:
        with self.kernel.quiet():
            return [
                node
                for node in self.nodes
                if node.agent is not None and container_id in node.agent.store.replica_ids()
            ]
