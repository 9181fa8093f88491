"""Orders reconciles, and limits how often a reconcile of the same container is repeated.

Reconciles have a separate limit of commands per datanode (`scm.cluster.commands.command_limits`).
After a reconcile, a container gets no other one during a pause. The number of reconciles without a
change is limited, because some replicas cannot become equal. The replicas that differ from the
majority are reconciled first. The replicas that they read from are then not busy with their own
reconcile.
"""

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from merkle.replica import ReplicaState
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.replication.reconcile.eligibility import Eligibility, Participants, judge
from scm.replication.reconcile.plan_check import ASKED_FOR, ContainerDecision, PlanRow
from scm.state.database import StateChange
from scm.state.entities import (
    CommandKind,
    CommandOutcome,
    Container,
    Holder,
    NodeHealthState,
    OutcomeState,
    PendingCommand,
    Replica,
)
from suture.errors import Code
from suture.runtime.backoff import backoff_s

COOLDOWN: Final = "COOLDOWN"
NO_PROGRESS: Final = "NO_PROGRESS"
EXCLUDED: Final = "EXCLUDED"
TRIES_MAX: Final = 3  # complete reconciles for plans or healing while the replicas do not change


@dataclass(frozen=True, slots=True)
class _Tries:
    """The number of reconciles of one container since its replicas last changed."""

    world: int
    count: int  # orders that at least one datanode completed
    at_s: float
    is_counted: bool = False  # whether the newest order is counted


class ReconcileScheduler(ControlComponent):
    """Orders reconciles, and limits how often they are repeated.

    Callers must hold the control plane's lock.
    """

    def __init__(self, basis: DecisionContext) -> None:
        super().__init__(basis)
        self._ordered_at_s: dict[int, float] = {}
        self._tries: dict[int, _Tries] = {}

    def order(self, change: StateChange, container_id: int) -> ContainerDecision:
        """Order a reconcile of a container on request of an operator.

        This also resets its number of retries.
        """
        participants = self.participants(container_id)
        if participants.eligibility is not Eligibility.OK:
            return ContainerDecision(container_id, participants.eligibility, participants.message)
        self._tries.pop(container_id, None)
        return self._order(change, container_id, participants, ASKED_FOR)

    def order_planned(
        self,
        change: StateChange,
        row: PlanRow,
        participants: Participants,
        *,
        why: str = "",
        dry_run: bool,
    ) -> ContainerDecision:
        """Order a reconcile that a plan or the control plane itself requests.

        It is not ordered if the last reconcile of the container was too recent, or if too many had
        no effect. `why` replaces the reason in `row`, if it is not empty. An excluded replica gets
        no command, but the other replicas may still read verified data from it.
        """
        container_id = row.container_id
        left_s = self._cooldown_left_s(container_id)
        if left_s > 0:
            return ContainerDecision(
                container_id, COOLDOWN, f"reconciled lately; again in {left_s:.0f} s"
            )
        world = self._fingerprint(container_id)
        tries = self._tries.get(container_id)
        count = 0 if tries is None or tries.world != world else tries.count
        if count >= TRIES_MAX:
            return ContainerDecision(
                container_id,
                NO_PROGRESS,
                f"{TRIES_MAX} times reconciled and nothing changed; an operator may try again",
            )
        held = {hold.datanode_id for hold in self._state.holds.of(container_id)}
        targets = tuple(
            node
            for node in participants.targets
            if node not in held and self._nodes.takes_commands(node)
        )
        if not targets:
            message = "its replicas are excluded: suture scm hold says since when"
            return ContainerDecision(container_id, EXCLUDED, message)
        participants = replace(participants, targets=targets)
        if dry_run:
            return ContainerDecision(
                container_id, "OK", "would go to " + ", ".join(participants.targets)
            )
        decision = self._order(change, container_id, participants, why or row.why)
        if decision.code == "OK":
            self._tries[container_id] = _Tries(world, count, self._clock.monotonic_s())
        return decision

    def peers_of(self, command: PendingCommand) -> tuple[str, ...]:
        """Return the datanodes that a reconcile command may read from now.

        Return an empty tuple if the container cannot be reconciled.
        """
        participants = self.participants(command.container_id)
        if command.datanode_id not in participants.targets:
            return ()
        return participants.peers_of(command.datanode_id)

    def addressed(self, command: PendingCommand) -> PendingCommand:
        """Return a reconcile command with its `holders`, which are added when it is sent.

        The holders are the replicas that the command does not read from. They could contradict the
        peers, unless their datanode is dead.
        """
        if command.kind is not CommandKind.RECONCILE or command.scheme:
            return command
        asked = {command.datanode_id, *self.peers_of(command)}
        replicas = self._state.replicas.of(command.container_id)
        living = self._nodes.live_replicas(replicas)
        holders = (Holder(r, is_dead=r not in living) for r in replicas)
        return replace(
            command, holders=tuple(h for h in holders if h.replica.datanode_id not in asked)
        )

    def participants(self, container_id: int) -> Participants:
        """Check whether a container may be reconciled now. Return the result and the participants.

        A datanode of another layout version may be a peer, but it receives no command.
        """
        found = judge(
            self._state.containers.get(container_id),
            self._nodes.live_replicas(self._state.replicas.of(container_id)),
            self._nodes.is_reachable,
        )
        targets = tuple(node for node in found.targets if self._nodes.takes_commands(node))
        if found.targets and not targets:
            message = "every replica that has a peer is on a datanode of another layout"
            return Participants(Eligibility.NO_REACHABLE_PEER, message)
        return replace(found, targets=targets)

    def ended(self, command: PendingCommand, outcome: CommandOutcome) -> None:
        """Record the end of a reconcile command.

        Only a complete reconcile counts as an attempt without effect (issue 49.9). A reconcile that
        failed, was stopped, was too late, or could not reach a peer shows nothing about the
        replicas.
        """
        container_id = command.container_id
        self._ordered_at_s[container_id] = self._clock.monotonic_s()
        tries = self._tries.get(container_id)
        is_complete = outcome.state is OutcomeState.EXECUTED and outcome.is_complete
        if tries is not None and is_complete and not tries.is_counted:
            self._tries[container_id] = replace(tries, count=tries.count + 1, is_counted=True)

    def forget_old(self) -> None:
        """Delete the records of reconciles that are too old to matter."""
        now_s, cooldown_s = self._clock.monotonic_s(), self._options.reconcile_cooldown_ms / 1000
        self._ordered_at_s = {
            container_id: at_s
            for container_id, at_s in self._ordered_at_s.items()
            if self._cooldown_left_s(container_id) > 0
        }
        longest_s = backoff_s(TRIES_MAX, first_s=cooldown_s)
        self._tries = {
            container_id: tries
            for container_id, tries in self._tries.items()
            if tries.count >= TRIES_MAX or now_s - tries.at_s <= 2 * longest_s
        }

    def _cooldown_left_s(self, container_id: int) -> float:
        ordered_at_s = self._ordered_at_s.get(container_id)
        if ordered_at_s is None:
            return 0.0
        tries = self._tries.get(container_id)
        pause_s = backoff_s(
            max(1, tries.count) if tries else 1, first_s=self._options.reconcile_cooldown_ms / 1000
        )
        return pause_s - (self._clock.monotonic_s() - ordered_at_s)

    def _fingerprint(self, container_id: int) -> int:
        """Return a checksum of the facts that decide whether another reconcile can help.

        The value changes if a replica has changed, or if a datanode returned or died.
        """
        facts = [
            (
                r.datanode_id,
                self._nodes.is_reachable(r.datanode_id),
                self._nodes.health(r.datanode_id) is NodeHealthState.DEAD,
                r.state,
                r.bcsid,
                r.finding_count,
                r.is_contradictory,
                None if r.tree is None else (r.tree.root, r.tree.tombstones_checksum),
            )
            for r in self._state.replicas.of(container_id)
        ]
        return zlib.crc32(repr(facts).encode())

    def _order(
        self, change: StateChange, container_id: int, participants: Participants, why: str
    ) -> ContainerDecision:
        full = [node for node in participants.targets if not self._commands.has_room(node)]
        if full:
            return ContainerDecision(container_id, Code.BUSY, f"the queue of {full[0]} is full")
        container = self._state.containers.get(container_id)
        assert container is not None, "an unknown container is not eligible"
        first = minority(container, self._state.replicas.of(container_id), participants.targets)
        known, command_ids = 0, []
        for node in participants.targets:
            pending = self._state.commands.about(CommandKind.RECONCILE, container_id, node)
            known += pending is not None
            command_ids.append(
                self._commands.queue(
                    change,
                    CommandKind.RECONCILE,
                    container_id,
                    node,
                    why=why,
                    is_second=node not in first,
                )
                if pending is None
                else pending.command_id
            )
        self._ordered_at_s[container_id] = self._clock.monotonic_s()
        message = f"{known} of {len(command_ids)} were ordered before" if known else ""
        return ContainerDecision(container_id, "OK", message, tuple(command_ids))


def minority(
    container: Container, replicas: Sequence[Replica], targets: Sequence[str]
) -> frozenset[str]:
    """Return the target datanodes that reconcile first.

    Their replica is damaged, has no tree, lacks commits, or has another root than the majority of
    the replicas. If there are no such targets, return all targets.
    """
    taking_part = [replica for replica in replicas if replica.datanode_id in targets]
    roots = Counter(r.tree.root for r in taking_part if r.tree is not None)
    ranked = roots.most_common(2)
    has_majority = len(ranked) == 1 or (len(ranked) == 2 and ranked[0][1] > ranked[1][1])
    most = ranked[0][0] if has_majority else None
    first = frozenset(
        r.datanode_id
        for r in taking_part
        if r.tree is None
        or (most is not None and r.tree.root != most)
        or r.state is ReplicaState.UNHEALTHY
        or r.finding_count
        or r.bcsid < container.sequence_id
    )
    return first or frozenset(targets)
