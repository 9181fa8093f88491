"""The replication manager: checks containers, and orders copies, rebuilds and deletes of replicas.

A container is checked when it changes, and then once per round until no check finds a problem
(`scm.state.container_queues`). Therefore, an idle cluster causes no work. One call of
`health.judge` checks many containers. A container with missing replicas enters the queue for copies
and reconstructions. A container with surplus replicas enters the queue for deletes.

The most urgent container comes first. If no source has free capacity or no target has space, the
container waits in its queue. Its urgency becomes slightly lower at each attempt, so that it does
not block others. If no datanode at all can receive the replica, the container is not tried again
before another datanode can.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np
import structlog

from health.plan.plan_rows import MISPLACED_PRIORITY
from health.words import Action, HealthState
from scm.cluster.commands.loads import in_flight_limit, least_loaded
from scm.cluster.container_context import (
    IMPORT_SPACE_FACTOR,
    ContainerContext,
    counts_for_racks,
    is_bad,
    is_better_rack,
    needed_bytes,
    neighbours,
)
from scm.cluster.copy_targets import choose_targets
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.replication.health.health_states import AT_RISK, HealthStates, UnhealthyContainers
from scm.replication.health.live_judge import MADE, HealthRow, LiveHealthJudge
from scm.replication.processors.reconstruction import Reconstructor
from scm.replication.processors.removals import OverReplicatedProcessor
from scm.replication.processors.repair_queue import ReplicationQueue
from scm.replication.reconcile.auto_reconcile import AutoReconcile
from scm.state import entities
from scm.state.container_queues import PriorityContainerQueue
from scm.state.database import StateChange
from scm.state.entities import CommandKind, CommandPriority, Container, ContainerState

LOOKS_PER_TURN: Final = 2_000  # containers per portion, while the lock is held, some 0.03 s
ATTEMPTS_PER_TURN: Final = 500
ASKED_AT_ONCE: Final = 100  # containers per call of the judge
ORDERS_AT_ONCE: Final = 50  # orders per portion, while the lock is held, some 0.03 s
UNLIMITED: Final = 1_000_000  # replicas in flight if no limit is set

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """The source and the target of a possible copy."""

    source_id: str
    target_id: str


class ReplicationManager(ControlComponent):
    """Orders the commands that give closed containers their required number of replicas.

    Callers must hold the control plane's lock.
    """

    def __init__(
        self,
        basis: DecisionContext,
        judge: LiveHealthJudge,
        coding: Reconstructor,
        removals: OverReplicatedProcessor,
        healing: AutoReconcile,
    ) -> None:
        super().__init__(basis)
        self._judge = judge
        self._coding = coding
        self._due = PriorityContainerQueue()
        self._stirred = self._state.dirty_containers()  # changed containers, which become due
        self._round_at = 1  # next container of the round
        self._round_stop = 1  # end of this step's part of the round
        self._settled = self._state.settled()
        self._rack_count = 0
        self._queue = ReplicationQueue(self._has_room)
        self._waiting: list[int] = []  # containers of this step that were not tried yet
        self._unfinished: list[int] = []  # containers of this step that lack more than was ordered
        self._is_repeated = False  # True while this step retries unfinished containers
        self._able: frozenset[tuple[str, bool]] = frozenset()  # nodes that may take replicas
        self._removals = removals
        self._healing = healing
        self._judged = self._state.settled()
        self._states = UnhealthyContainers()
        self.moving: set[int] = set()  # containers with a surplus until the balancer removes one
        self.uneven: set[int] = set()  # erasure-coded; a shard may have missed a delete
        self.short: set[int] = set()  # closed; the last commit is on no present datanode
        self.round_at_ms = 0  # end of the last round through all containers

    @property
    def under(self) -> Mapping[int, tuple[int, int]]:
        """Return the containers with missing replicas.

        Each has its priority (the smallest is the most urgent) and the number of tries.
        """
        return self._queue.found

    def enqueue(self, container_ids: Iterable[int]) -> None:
        """Schedule a check of these containers.

        A container whose row changes is scheduled without this call.
        """
        self._due.add(container_ids)

    def enqueue_node(self, datanode_id: str, *, is_urgent: bool = False) -> None:
        """Schedule a check of all containers on a datanode.

        The datanode has appeared, died, or is going to leave. With `is_urgent`, the containers are
        checked before all waiting containers. This matters after a start, when all containers wait.
        """
        held = self._state.replicas.ids_on(datanode_id)
        self._state.mark_dirty(held)
        self._due.add_all(held, is_urgent=is_urgent)

    def states(self) -> HealthStates:
        """Return the health state of each container as of its last check."""
        return HealthStates(dict(self._states), self._judged.copy())

    def at_risk(self) -> list[int]:
        """Return the containers whose last check found them lost or at risk of loss."""
        if not AT_RISK & {state for state, count in self._states.counts.items() if count}:
            return []
        return [number for number, state in self._states.items() if state in AT_RISK]

    def conditions(self) -> Mapping[str, int]:
        """Return the number of containers in each health state except HEALTHY."""
        return {state.name: count for state, count in self._states.counts.items() if count}

    def health_of(self, container_id: int) -> str:
        """Return the health state of a container at its last check.

        Return an empty string for HEALTHY.
        """
        found = self._states.get(container_id)
        return "" if found is None else found.name

    def unhealthy_since_ms(self, container_id: int) -> int:
        """Return the time of the first check that found the container not HEALTHY.

        The time is in ms since 1970. Return 0 if the container is HEALTHY.
        """
        return self._states.since_ms.get(container_id, 0)

    def is_resting(self, container_id: int) -> bool:
        """Return True if a container waits because no datanode can receive its missing replica."""
        return self._queue.is_resting(container_id)

    def busy_sources(self, container_id: int) -> tuple[str, ...]:
        """Return the sources of a container if all of them are at their limits.

        Otherwise, return an empty tuple.
        """
        return self._queue.sleeps_for(container_id)

    @property
    def resting_count(self) -> int:
        """Return the number of containers that wait for a datanode which can receive a replica."""
        return self._queue.resting_count

    @property
    def sleeping_count(self) -> int:
        """Return the number of containers whose sources are all at their limits."""
        return self._queue.sleeping_count

    def unlooked_count(self) -> int:
        """Return the number of containers that have not been checked since their last change."""
        given_up = (one.container.container_id for one in self._state.forgotten.values())
        looked_at = len(self._judged) - sum(number in self._judged for number in given_up)
        return max(0, len(self._state.containers) - looked_at)

    def begin_turn(self) -> None:
        """Add one tick's share of the round through all containers to the due checks."""
        if self._rack_count != self._nodes.rack_count():  # the required spread has changed
            self._rack_count = self._nodes.rack_count()
            self._settled.clear()
            self._judged.clear()
        end = self._state.counters["next_container_id"]
        if self._round_at >= end:
            self._round_at = self._round_stop = 1
        self._round_stop = min(end, self._round_stop + ceil(end / self._turns_per_round()))

    def choose(self) -> None:
        """Choose the containers for which `order_next` orders commands in this tick."""
        self._wake_if_more_are_able()
        with self._commands.loads.cached_candidates():
            self._waiting = self._queue.choose(ATTEMPTS_PER_TURN)
            self._removals.begin_turn()
        self._is_repeated = len(self._waiting) < ATTEMPTS_PER_TURN
        self._unfinished = []

    def order_next(self, change: StateChange) -> bool:
        """Order commands for the next few chosen containers. Return False if none is left.

        The most urgent container comes first. If a container lacks two replicas, the second one is
        ordered after all other containers got one.
        """
        if not self._waiting and self._is_repeated:
            self._waiting, self._unfinished = self._unfinished, []
        portion = self._waiting[:ASKED_AT_ONCE]
        del self._waiting[:ASKED_AT_ONCE]
        with self._cases.cached_candidates(), self._commands.loads.cached_candidates():
            if not portion:
                return self._removals.order_next(change)
            self._serve_under(change, portion)
            return True

    def check_next(self) -> list[int]:
        """Check some due containers, and return their ids. Order nothing.

        If fewer than LOOKS_PER_TURN containers are due, also check the next ones of the round.
        """
        self._due.add_all(self._stirred.pop_all())
        chosen = self._due.pop(LOOKS_PER_TURN)
        if len(chosen) < LOOKS_PER_TURN:
            chosen += self._of_round(LOOKS_PER_TURN - len(chosen))
        if chosen:
            self._look_at(chosen)
        return chosen

    @property
    def is_behind(self) -> bool:
        """Return True if some containers that are due in this tick have not been checked yet."""
        return bool(self._due or self._stirred) or self._round_at < self._round_stop

    def pairs(self, from_ids: Sequence[str], target_ids: Sequence[str]) -> list[PlannedCopy]:
        """Return a source for each target: the least loaded datanode of `from_ids`.

        There are fewer pairs than targets if all sources are at their limits.
        """
        extra: dict[str, int] = {}

        def load_of(node: str) -> int:
            return self._commands.loads.replication_load(node) + extra.get(node, 0)

        chosen = []
        for target_id in target_ids:
            source_id = least_loaded(from_ids, load_of, self._commands.loads.replication_limit)
            if source_id is None:
                break
            extra[source_id] = extra.get(source_id, 0) + 1
            chosen.append(PlannedCopy(source_id, target_id))
        return chosen

    def _useful_targets(self, case: ContainerContext, row: HealthRow) -> list[str]:
        found = self.targets(case, 1)
        if row.priority != MISPLACED_PRIORITY:
            return found
        # A copy on a rack that already counts would be removed and made again forever.
        if case.container.scheme:
            [moved] = [p for p in case.placed if p.datanode_id == row.sources[0]]
            return [n for n in found if is_better_rack(case, moved, self._nodes.rack(n))]
        racks = {p.rack for p in case.placed if counts_for_racks(case, p)}
        return [node for node in found if self._nodes.rack(node) not in racks]

    def targets(self, case: ContainerContext, count: int) -> list[str]:
        """Choose up to `count` datanodes that can receive a copy of a container."""
        used, excluded = neighbours(case)
        return choose_targets(
            self._cases.candidates(),
            count=count,
            needed_bytes=needed_bytes(case),
            used_racks=[self._nodes.rack(node) for node in sorted(used)],
            excluded=used | excluded,
            failed_at_s=self._commands.failing_targets.of(case.container.container_id),
            container_id=case.container.container_id,
        )

    def order_copy(
        self,
        change: StateChange,
        case: ContainerContext,
        copy: PlannedCopy,
        *,
        why: str,
        priority: CommandPriority = CommandPriority.NORMAL,
    ) -> int:
        """Queue a replicate command, and return the id of the command.

        The audit log records `why`.
        """
        size_bytes = needed_bytes(case)
        self._cases.reserve_space(copy.target_id, size_bytes)
        return self._commands.queue(
            change,
            CommandKind.REPLICATE,
            case.container.container_id,
            copy.source_id,
            why=why,
            target_id=copy.target_id,
            size_bytes=size_bytes,
            priority=priority,
        )

    def in_flight_limit(self) -> int:
        """Return the limit on the number of replicas that the cluster copies at once.

        0 means no limit.
        """
        total = sum(
            self._commands.loads.service_limit(node.datanode_id)
            for node in self._state.nodes.values()
            if self._nodes.health(node.datanode_id) is entities.NodeHealthState.HEALTHY
        )
        return in_flight_limit(total, self._options.inflight_factor_percent)

    def _of_round(self, count_max: int) -> list[int]:
        """Return the next containers of the round that need a check, at most `count_max`.

        Only this tick's part of the round is searched.
        """
        first, stop = self._round_at, self._round_stop
        found = self._settled.missing(first, stop, count_max=count_max)
        self._round_at = found[-1] + 1 if len(found) == count_max else stop
        if self._round_at >= self._state.counters["next_container_id"]:
            self.round_at_ms = self._clock.wall_ms()
        return found

    def _look_at(self, container_ids: Sequence[int]) -> None:
        """Check the health of containers, and record it.

        Queue those with missing replicas for copies, those with surplus replicas for deletes, and
        those with differing replicas for reconciles.
        """
        found, lacks = self._judge.summarize_health(container_ids)
        self._healing.record_candidates(found)
        ids = found.view.batch.containers.container_id
        states = found.verdicts.state
        again = self._states.keys() & set(ids[states == 0].tolist())
        now_ms = self._clock.wall_ms()
        self._states.record_states(((number, HealthState.HEALTHY) for number in again), now_ms)
        unhealthy = states.nonzero()[0]
        pairs = zip(ids[unhealthy].tolist(), states[unhealthy].tolist(), strict=True)
        self._states.record_states(
            ((number, HealthState(state)) for number, state in pairs), now_ms
        )
        looked_at = set(ids.tolist())
        under = {n: weight for n, weight in lacks.under.items() if self._may_be_copied(n)}
        over = lacks.over - self.moving
        self._queue.discard((self.under.keys() & looked_at) - under.keys())
        for container_id, weight in under.items():
            self._queue.put(container_id, weight)
        self._removals.record_candidates(looked_at, over)
        self.uneven = (self.uneven - looked_at) | lacks.uneven
        self.short = (self.short - looked_at) | lacks.short
        is_made_here = ids < self._state.counters["next_container_id"]
        self._judged.add_all(ids[is_made_here])
        is_well = is_made_here & (states == 0)
        is_well[np.searchsorted(ids, [*under, *over])] = False
        self._settled.add_all(ids[is_well])

    def _turns_per_round(self) -> int:
        return max(1, self._options.check_interval_ms // self._options.heartbeat_interval_ms)

    def _may_be_copied(self, container_id: int) -> bool:
        container = self._state.containers.get(container_id)
        return container is not None and self._is_settled(container)

    def _is_settled(self, container: Container) -> bool:
        """Return True if a container may be copied.

        It must be CLOSED, or have been QUASI_CLOSED for longer than a check interval. A
        QUASI_CLOSED container usually becomes CLOSED within that time. Copies that are made before
        would become surplus.
        """
        if container.state is ContainerState.CLOSED:
            return True
        waited_ms = self._clock.wall_ms() - container.state_since_ms
        is_soon = 0 <= waited_ms <= self._options.check_interval_ms  # below 0: the clock was wrong
        return not container.scheme and not is_soon

    def _serve_under(self, change: StateChange, portion: Sequence[int]) -> None:
        """Order one copy for each of these containers, which lack replicas."""
        limit = self.in_flight_limit()
        asked = [n for n in portion if n in self._queue and not self._queue.sleeps_again(n)]
        needs, ordered_count = self._judge.rows(asked), 0
        for place, container_id in enumerate(asked):
            if ordered_count == ORDERS_AT_ONCE:
                self._waiting[:0] = asked[place:]
                return
            room = limit - self._state.commands.add_count if limit else UNLIMITED
            if room <= 0:
                self._waiting, self._unfinished = [], []
                return
            if self._queue.sleeps_again(container_id):
                continue  # other containers of this step took the room
            weight, tries = self.under[container_id]
            container = self._state.containers.get(container_id)
            before = self._state.commands.add_count
            rows = [row for row in needs.get(container_id, ()) if row.action in MADE]
            is_done = container is None or self._make(change, container, rows, room)
            is_ordered = self._state.commands.add_count > before
            ordered_count += is_ordered
            if is_done:
                self._queue.discard([container_id])
                continue
            self._queue.put_back(container_id, weight=weight, tries=tries + 1)
            if is_ordered:
                self._unfinished.append(container_id)

    def _make(
        self, change: StateChange, container: Container, rows: Sequence[HealthRow], room: int
    ) -> bool:
        """Order the copies and rebuilds that a container needs, as far as possible now.

        Return True if nothing more needs to be ordered. `room` is the number of further replicas
        that the cluster may copy at once. Copies are ordered one by one. Missing shards are ordered
        together, because each has different data.
        """
        if not rows:
            return True
        case = self._cases.case(container)
        lost = next((row for row in rows if row.action is Action.RECONSTRUCT), None)
        is_rebuilt = lost is None or self._coding.rebuild(change, case, lost, count_max=room)
        is_cooling = self._commands.is_cooling(CommandKind.REPLICATE, container.container_id)
        copied = [row for row in rows if row.action is Action.REPLICATE]
        ordered, is_put_off = 0, False
        for row in copied if container.scheme else copied[:1]:
            is_put_off = is_cooling or ordered >= room or self._is_waiting_for(case, row.sources)
            if is_put_off:
                break
            ordered += self._copy(change, case, row)
            case = self._cases.case(container)
        if lost is not None and not is_rebuilt and not case.deletes and not self.targets(case, 1):
            is_rebuilt = not self._removals.make_room(change, case) and self._coding.rebuild(
                change, case, lost, count_max=room, is_in_place=True
            )
        elif lost is None and not ordered and not is_put_off and not self.targets(case, 1):
            # If each datanode has a shard, only a duplicate shard prevents a copy of another one.
            self._removals.make_room(change, case)
        if not ordered and not is_put_off and self._is_without_place(case, lost, copied):
            self._queue.park(container.container_id)
        return is_rebuilt and ordered == sum(row.copies for row in copied)

    def _copy(self, change: StateChange, case: ContainerContext, row: HealthRow) -> bool:
        """Order one copy. Return False if there is no source or no target."""
        copies = self.pairs(row.sources, self._useful_targets(case, row))
        for copy in copies:
            why = row.reason + row.objection_text(copy.source_id)
            command_id = self.order_copy(change, case, copy, why=why)
            change.on_commit(
                _log.info,
                "replicate_ordered",
                container_id=case.container.container_id,
                command_id=command_id,
                source_id=copy.source_id,
                target_id=copy.target_id,
            )
        return bool(copies)

    def _is_waiting_for(self, case: ContainerContext, from_ids: Sequence[str]) -> bool:
        """Return True if all sources in `from_ids` are at their limits.

        In this case, also let the container wait until one of them has free capacity.
        """
        if not from_ids or any(map(self._has_room, from_ids)):
            return False
        self._queue.park_until_room(case.container.container_id, from_ids)
        return True

    def _is_without_place(
        self, case: ContainerContext, lost: HealthRow | None, copied: Sequence[HealthRow]
    ) -> bool:
        """Return True if a container can only be repaired after another datanode becomes suitable.

        That is the case if no datanode can receive a copy, or none on a useful rack. Return False
        if the removal of an unhealthy or duplicate replica can make space.
        """
        indexes = [p.replica.replica_index for p in case.placed]
        return (
            not any(is_bad(case.container, p.replica) for p in case.placed)
            and (not case.container.scheme or len(indexes) == len(set(indexes)))
            and not (lost is not None and self.targets(case, 1))
            and not any(self._useful_targets(case, row) for row in copied)
        )

    def _wake_if_more_are_able(self) -> None:
        """Queue the containers without a suitable datanode again if a datanode has become suitable.

        A datanode becomes suitable if it can receive replicas again, or has enough space again.
        """
        before, self._able = self._able, frozenset()
        if not self._queue.has_resting:
            return
        size_bytes = IMPORT_SPACE_FACTOR * self._options.container_bytes_max
        able = self._cases.candidates()
        roomy = (c for c in able if c.has_room(size_bytes))
        self._able = frozenset(
            [*((c.datanode_id, False) for c in able), *((c.datanode_id, True) for c in roomy)]
        )
        if not self._able <= before:
            self._queue.wake_resting()

    def _has_room(self, datanode_id: str) -> bool:
        limit = self._commands.loads.replication_limit(datanode_id)
        return self._commands.loads.replication_load(datanode_id) < limit
