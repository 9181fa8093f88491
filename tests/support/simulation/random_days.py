"""A small cluster with random events: a real control plane, and simulated datanodes.

Each step is a second. Random numbers decide which datanodes send heartbeats, which commands are
executed, which replicas are damaged, which nodes die and return, and which requests operators make.
The same seed gives the same events.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from merkle.replica import ReplicaState
from scm.administration.decommission import OpStateRequest
from scm.state.entities import CommandKind, OpState, OutcomeState, PendingCommand, Replica
from scm.state.options import ScmOptions
from tests.support.control.booked import enter, sayable
from tests.support.control.scm_world import ScmWorld, outcome, replica, summary
from tests.support.verification.random_clusters import RACK_COUNT, random_cluster

OPTIONS: Final = ScmOptions(
    heartbeat_interval_ms=1_000,
    stale_after_ms=5_000,
    dead_after_ms=12_000,
    check_interval_ms=4_000,
    close_retry_ms=500,
    heal_after_ms=2_000,
    repair_grace_ms=5_000,
    safemode_wait_ms=3_000,
    safemode_container_percent=0,
    command_deadline_ms=20_000,
    snapshot_keep_count=1,
)
SILENT_S_MAX: Final = 40
_SETTLED: Final = (ReplicaState.CLOSED, ReplicaState.QUASI_CLOSED, ReplicaState.UNHEALTHY)


class RandomDays:
    """A cluster with random events; `step` simulates one second."""

    def __init__(self, path: Path, seed: int, container_count: int) -> None:
        """Create the cluster; the caller closes `world.state`."""
        self.chance = random.Random(seed)
        rows = sayable(random_cluster(self.chance, container_count))
        self.world = ScmWorld(path, OPTIONS)
        enter(self.world, rows)
        self.racks = {node.datanode_id: node.rack for node in rows.nodes}
        self.held: dict[str, dict[int, Replica]] = {node: {} for node in self.racks}
        for one in self.world.state.replicas.values():
            self.held[one.datanode_id][one.container_id] = one
        self.silent_s = {
            node.datanode_id: self.chance.randrange(SILENT_S_MAX)
            for node in rows.nodes
            if node.health != "HEALTHY"
        }
        self.untold: dict[str, set[int]] = {node: set() for node in self.racks}
        self.gone: dict[str, set[int]] = {node: set() for node in self.racks}

    def step(self) -> None:
        """Simulate a second. In most steps, the control plane runs its decisions at the end."""
        self.world.clock.advance_s(1)
        for node in list(self.racks):
            if self.silent_s.get(node, 0) > 0:
                self.silent_s[node] -= 1
            elif self.silent_s.pop(node, None) is not None:
                self._return(node)
            elif self.chance.random() < 0.5:
                self._call(node)
        for happens, in_a_thousand in self._events():
            if self.chance.randrange(1_000) < in_a_thousand:
                happens()
        if self.chance.random() < 0.7:  # sometimes an operator looks before the change is reported
            self.world.control.tick()

    def _events(self) -> tuple[tuple[Callable[[], None], int], ...]:
        return (
            (self._damage, 700),
            (self._fall_silent, 150),
            (self._ask_of_a_node, 150),
            (self._hold, 200),
            (self._come, 30),
            (self._delete_key, 100),
            (self._restart, 30),
        )

    # Datanodes.

    def _call(self, node: str) -> None:
        """Send a heartbeat of a node with its changes, and execute most of the commands in the
        answer."""
        told = [
            self.held[node][number] for number in sorted(self.untold[node] & {*self.held[node]})
        ]
        told += [
            replica(node, ReplicaState.DELETED, container_id=number)
            for number in sorted(self.gone[node] - {*self.held[node]})
        ]
        self.untold[node].clear()
        self.gone[node].clear()
        answer = self.world.beat(node, *told)
        if not answer.is_known:
            self._return(node)
            return
        outcomes = []
        for command, _ in answer.commands:
            draw = self.chance.random()
            if draw < 0.7:
                self._carry_out(command)
            if draw < 0.85:
                state = OutcomeState.EXECUTED if draw < 0.7 else OutcomeState.FAILED
                outcomes.append(outcome(command, state))
        if outcomes:
            self.world.beat(node, outcomes=tuple(outcomes))

    def _return(self, node: str) -> None:
        """Register a node again, and send a full report of its replicas."""
        self.world.join(node, racks=(self.racks[node],))
        self.untold[node].clear()
        self.gone[node].clear()
        self.world.beat(node, *self.held[node].values(), full=True)

    def _carry_out(self, command: PendingCommand) -> None:
        node, number = command.datanode_id, command.container_id
        mine = self.held[node].get(number)
        match command.kind:
            case CommandKind.SET_OPERATIONAL_STATE:
                self.world.kept[node] = (OpState(command.op_state), command.op_expiry_ms)
            case CommandKind.DELETE if mine is not None:
                del self.held[node][number]
                self.gone[node].add(number)
            case CommandKind.CLOSE if mine is not None:
                self._put(replace(mine, state=self.chance.choice(_SETTLED[:2])))
            case CommandKind.REPLICATE if mine is not None:
                self._put(replace(mine, datanode_id=command.target_id))
            case CommandKind.RECONSTRUCT:
                for index, target in command.shards:
                    made = replica(target, container_id=number, bcsid=10, replica_index=index)
                    self._put(made)
            case CommandKind.RECONCILE if mine is not None:
                others = (self.held[other].get(number) for other in sorted(self.held))
                roots = [other.tree for other in others if other is not None and other.tree]
                self._put(replace(mine, tree=self.chance.choice(roots) if roots else None))
            case _:
                pass

    def _put(self, made: Replica) -> None:
        self.held[made.datanode_id][made.container_id] = made
        self.untold[made.datanode_id].add(made.container_id)

    # Damage, deaths and new nodes.

    def _damage(self) -> None:
        """Change a fact of a few replicas."""
        for _ in range(self.chance.randrange(1, 8)):
            node = self.chance.choice(sorted(self.held))
            if not self.held[node]:
                continue
            one = self.held[node][self.chance.choice(sorted(self.held[node]))]
            changed = self.chance.choice(
                (
                    replace(one, state=self.chance.choice(_SETTLED)),
                    replace(one, tree=summary(self.chance.choice((7, 8, 9)))),
                    replace(one, tree=None),
                    replace(one, finding_count=1 - min(one.finding_count, 1)),
                    replace(one, bcsid=self.chance.choice((9, 10, 11))),
                    replace(one, is_empty=not one.is_empty, block_count=0),
                    replace(one, is_contradictory=not one.is_contradictory),
                    replace(one, load_error=self.chance.choice(("", "descriptor unreadable"))),
                )
            )
            self._put(changed)

    def _fall_silent(self) -> None:
        node = self.chance.choice(sorted(self.racks))
        self.silent_s[node] = self.chance.randrange(1, SILENT_S_MAX)

    def _come(self) -> None:
        """Add a new datanode, sometimes on a new rack."""
        node = f"new{len(self.racks)}"
        self.racks[node] = f"/rack{self.chance.randrange(RACK_COUNT + 2)}"
        self.held[node], self.untold[node], self.gone[node] = {}, set(), set()
        self._return(node)

    # Operators.

    def _ask_of_a_node(self) -> None:
        node = self.chance.choice(sorted(self.racks))
        wanted = self.chance.choice(
            (OpState.IN_SERVICE, OpState.DECOMMISSIONING, OpState.ENTERING_MAINTENANCE)
        )
        self.world.control.departure_requests.submit(
            OpStateRequest((node,), wanted, is_forced=True)
        )

    def _hold(self) -> None:
        numbers = [box.container_id for box in self.world.state.containers.values()]
        if numbers:
            chosen = self.chance.sample(numbers, min(3, len(numbers)))
            holding = self.world.control.holding
            do = holding.release if self.chance.random() < 0.5 else holding.hold
            do(chosen, "")

    def _delete_key(self) -> None:
        keys, _ = self.world.control.clients.list_keys(prefix="", start_after="", count=20)
        if keys and self.world.control.safe_mode.status().is_open:
            self.world.control.deletions.delete_keys([self.chance.choice(keys).name], dry_run=False)

    def _restart(self) -> None:
        """Kill and restart the control plane; the nodes that answer register again."""
        self.world.restart()
        for node in sorted(self.racks):
            if node not in self.silent_s:
                self._return(node)
