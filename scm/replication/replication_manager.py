"""The replication manager: looks at containers, and orders what they lack or have too much of.

    report, node, time ──► look ──judge──► under queue ──► replicate, reconstruct ──┐
                                     └───► over queue  ──► delete ──────────────────┴──► commands

Every container is looked at when something about it changed, and again in rounds until it is
settled (`scm.state.settled`): a cluster at rest costs nothing. A look is one call of the judge for
all that are due (`health.judge`); only of those against which it has something are orders
considered. The most urgent goes first; what cannot be done now (no source with room, no target)
waits in its queue, a little less urgent each time, so that it does not stand in the way of what can
be done.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil
from typing import Final

import structlog

from health.plan.actions import MISPLACED_PRIORITY
from health.words import Action, Health
from scm.cluster.basis import Basis
from scm.cluster.case import Case, needed_bytes, neighbours
from scm.cluster.loads import in_flight_limit, least_loaded
from scm.cluster.placement import choose_targets
from scm.replication.healing import Healing
from scm.replication.judge import MADE, Judge, Lacks, Row
from scm.replication.reconstruction import Reconstructor
from scm.replication.removals import Removals
from scm.replication.shards import is_better_rack
from scm.state import facts
from scm.state.database import Change
from scm.state.facts import Container, ContainerState, Kind, Priority
from scm.state.health_states import States

LOOKS_PER_TURN: Final = 1_500  # while the lock is held, some 0.05 s
ATTEMPTS_PER_TURN: Final = 500
ATTEMPTS_AT_ONCE: Final = 25  # while the lock is held, some 0.03 s
UNLIMITED: Final = 1_000_000  # replicas on their way, where no limit is set

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy as it would be ordered."""

    source_id: str
    target_id: str


class ReplicationManager:
    """Keeps closed containers at their number of replicas. Callers hold the control's lock."""

    def __init__(
        self,
        basis: Basis,
        judge: Judge,
        coding: Reconstructor,
        removals: Removals,
        healing: Healing,
    ) -> None:
        self._state = basis.state
        self._nodes = basis.nodes
        self._commands = basis.commands
        self._cases = basis.cases
        self._clock = basis.clock
        self._options = basis.options
        self._judge = judge
        self._coding = coding
        self._due: dict[int, None] = {}
        self._round_at = 1
        self._settled = self._state.settled()
        self._rack_count = 0
        self.under: dict[int, tuple[int, int]] = {}  # id -> weight, times put back
        self._waiting: list[int] = []  # of this turn: not tried yet
        self._unfinished: list[int] = []  # of this turn: lacks more than was ordered
        self._is_repeated = False  # whether this turn comes back to what is unfinished
        self._removals = removals
        self._healing = healing
        self._busy_sources: dict[int, tuple[str, ...]] = {}  # id -> all had enough to copy
        self._judged = self._state.settled()
        self._states: dict[int, Health] = {}  # of those that are not HEALTHY
        self.moving: set[int] = set()  # one too many on purpose, until the balancer removes it
        self.round_at_ms = 0  # when the last round through all containers ended

    def look_at(self, container_ids: Iterable[int]) -> None:
        """Have containers looked at in the next turn."""
        self._due.update(dict.fromkeys(container_ids))

    def look_at_node(self, datanode_id: str) -> None:
        """Have all containers of a node looked at: it came, went, or is to leave."""
        held = self._state.replicas.on(datanode_id)
        self._state.stir(held)
        self.look_at(held)

    def states(self) -> States:
        """Return the health state of each container as of its last look."""
        return States(dict(self._states), self._judged.copy())

    def begin_turn(self) -> list[int]:
        """Look at what is due and a part of the rest; return the containers looked at.

        What is ordered in this turn is chosen now: see `serve`.
        """
        looked_at = self._look()
        self._commands.boost_percent = self._options.repair_boost_percent if self.under else 100
        with self._commands.one_turn():
            urgent = heapq.nsmallest(
                ATTEMPTS_PER_TURN,
                (
                    (weight + repeat, number)
                    for number, (weight, repeat) in self.under.items()
                    if not self._is_still_waiting(number)
                ),
            )
            self._removals.begin_turn()
        self._waiting = [number for _urgency, number in urgent]
        self._is_repeated = len(urgent) < ATTEMPTS_PER_TURN
        self._unfinished = []
        return looked_at

    def serve(self, change: Change) -> bool:
        """Order what the next few containers of this turn need; False when there are none.

        The most urgent comes first. A container that lacks two replicas gets the second after all
        others got their first.
        """
        if not self._waiting and self._is_repeated:
            self._waiting, self._unfinished = self._unfinished, []
        portion = self._waiting[:ATTEMPTS_AT_ONCE]
        del self._waiting[:ATTEMPTS_AT_ONCE]
        with self._cases.one_turn(), self._commands.one_turn():
            if not portion:
                return self._removals.serve(change)
            self._serve_under(change, portion)
            return True

    def look_on(self) -> list[int]:
        """Look at more of what is due, and order nothing yet; return what was looked at."""
        due = self._taken()
        if due:
            self._look_at(due)
        return due

    @property
    def is_behind(self) -> bool:
        """Whether more is due than one turn looked at."""
        return bool(self._due)

    def pairs(self, from_ids: Sequence[str], target_ids: Sequence[str]) -> list[Copy]:
        """Give each target the least loaded source; fewer pairs if all have enough to do."""
        extra: dict[str, int] = {}

        def load_of(node: str) -> int:
            return self._commands.replication_load(node) + extra.get(node, 0)

        chosen = []
        for target_id in target_ids:
            source_id = least_loaded(from_ids, load_of, self._commands.replication_limit)
            if source_id is None:
                break
            extra[source_id] = extra.get(source_id, 0) + 1
            chosen.append(Copy(source_id, target_id))
        return chosen

    def _useful_targets(self, case: Case, row: Row) -> list[str]:
        found = self.targets(case, 1)
        if row.priority != MISPLACED_PRIORITY:
            return found
        # A copy on a rack that has one would be removed again, and made again, for ever.
        if case.container.scheme:
            [moved] = [p for p in case.placed if p.datanode_id == row.sources[0]]
            return [n for n in found if is_better_rack(case, moved, self._nodes.rack(n))]
        racks = {p.rack for p in case.placed}
        return [node for node in found if self._nodes.rack(node) not in racks]

    def targets(self, case: Case, count: int) -> list[str]:
        """Choose up to `count` nodes for copies."""
        used, excluded = neighbours(case)
        return choose_targets(
            self._cases.candidates(),
            count=count,
            needed_bytes=needed_bytes(case),
            used_racks=[self._nodes.rack(node) for node in sorted(used)],
            excluded=used | excluded,
            container_id=case.container.container_id,
            seed=self._options.seed,
        )

    def order_copy(
        self,
        change: Change,
        case: Case,
        copy: Copy,
        *,
        why: str,
        priority: Priority = Priority.NORMAL,
    ) -> int:
        """Queue a replicate command; return its id. `why` is for the audit log."""
        size_bytes = needed_bytes(case)
        self._cases.promise(copy.target_id, size_bytes)
        return self._commands.queue(
            change,
            Kind.REPLICATE,
            case.container.container_id,
            copy.source_id,
            why=why,
            target_id=copy.target_id,
            size_bytes=size_bytes,
            priority=priority,
        )

    def in_flight_limit(self) -> int:
        """Return how many replicas may be on their way; 0: no limit."""
        total = sum(
            self._commands.limits_of(node.datanode_id).replications
            for node in self._state.nodes.values()
            if self._nodes.health(node.datanode_id) is facts.Health.HEALTHY
        )
        limits = (
            in_flight_limit(total, self._options.inflight_factor_percent),
            self._options.copy_count_max,
        )
        return min((limit for limit in limits if limit), default=0)

    def _look(self) -> list[int]:
        if self._rack_count != self._nodes.rack_count():  # what is spread enough has changed
            self._rack_count = self._nodes.rack_count()
            self._settled.clear()
            self._judged.clear()
        due = self._taken()
        self._go_round(due)
        if due:
            self._look_at(due)
        return due

    def _taken(self) -> list[int]:
        due = list(islice(self._due, LOOKS_PER_TURN))
        for container_id in due:
            del self._due[container_id]
        return due

    def _look_at(self, container_ids: Sequence[int]) -> None:
        """Ask the judge about containers, and put each into the queues it belongs to."""
        found, lacks = self._judge.look(container_ids)
        self._healing.note(found)
        ids = found.view.batch.containers.container_id
        states = found.verdicts.state
        for container_id in self._states.keys() & set(ids[states == 0].tolist()):
            del self._states[container_id]
        unwell = states.nonzero()[0]
        pairs = zip(ids[unwell].tolist(), states[unwell].tolist(), strict=True)
        self._states.update((number, Health(state)) for number, state in pairs)
        looked_at = ids.tolist()
        self._removals.forget(set(looked_at))
        for container_id in self._busy_sources.keys() & set(looked_at):
            del self._busy_sources[container_id]
        for container_id in looked_at:
            if (
                container_id in self.under
                or container_id in lacks.under
                or container_id in lacks.over
            ):
                self._put(container_id, lacks)
        is_made_here = ids < self._state.counters["next_container_id"]
        self._judged.add_all(ids[is_made_here].tolist())
        well = ids[is_made_here & (states == 0)].tolist()
        over = self._removals.over
        self._settled.add_all([n for n in well if n not in self.under and n not in over])

    def _go_round(self, due: list[int]) -> None:
        """Add this turn's part of all containers to those that are due, but what is settled."""
        end = self._state.counters["next_container_id"]
        stop = min(end, self._round_at + ceil(end / self._turns_per_round()))
        while self._round_at < stop:
            self._round_at = self._settled.first_missing(self._round_at, stop)
            if self._round_at == stop or len(due) >= LOOKS_PER_TURN:
                break
            due.append(self._round_at)
            self._round_at += 1
        if self._round_at >= end:
            self._round_at, self.round_at_ms = 1, self._clock.wall_ms()

    def _turns_per_round(self) -> int:
        return max(1, self._options.check_interval_ms // self._options.heartbeat_interval_ms)

    def _put(self, container_id: int, lacks: Lacks) -> None:
        """Put a container into the queues that it belongs to."""
        container = self._state.containers.get(container_id)
        weight = lacks.under.get(container_id)
        if weight is not None and container is not None and self._is_settled(container):
            self.under[container_id] = (weight, self.under.get(container_id, (0, 1))[1])
        else:
            self.under.pop(container_id, None)
        if container_id in lacks.over and container_id not in self.moving:
            self._removals.over[container_id] = None

    def _is_settled(self, container: Container) -> bool:
        """Whether a container is closed, or was not closed whole for so long that it may stay so.

        A quasi-closed one is about to be closed for good, as a rule; until that is over, copies
        would only be too many.
        """
        if container.state is ContainerState.CLOSED:
            return True
        waited_ms = self._clock.wall_ms() - container.state_since_ms
        return not container.scheme and waited_ms > self._options.check_interval_ms

    def _serve_under(self, change: Change, portion: Sequence[int]) -> None:
        """Order what some containers lack, one copy of each."""
        limit = self.in_flight_limit()
        needs = self._judge.rows(portion)
        for container_id in portion:
            room = limit - self._state.commands.add_count if limit else UNLIMITED
            if room <= 0:
                self._waiting, self._unfinished = [], []
                return
            if container_id not in self.under or self._is_still_waiting(container_id):
                continue  # since the turn began it was seen well, or its sources lost their room
            weight, repeat = self.under.pop(container_id)
            container = self._state.containers.get(container_id)
            before = self._state.commands.add_count
            rows = [row for row in needs.get(container_id, ()) if row.action in MADE]
            if container is None or self._make(change, container, rows, room):
                continue
            self.under[container_id] = (weight, repeat + 1)
            if self._state.commands.add_count > before:
                self._unfinished.append(container_id)

    def _make(self, change: Change, container: Container, rows: Sequence[Row], room: int) -> bool:
        """Order what a container lacks, as things are now; whether that is all of it.

        `room` is how many more replicas may be on their way in the cluster. Of replicas one is
        ordered at a time; shards are different data: all that lack are ordered together.
        """
        if not rows:
            return True
        case = self._cases.case(container)
        lost = next((row for row in rows if row.action is Action.RECONSTRUCT), None)
        is_rebuilt = lost is None or self._coding.rebuild(change, case, lost, count_max=room)
        is_cooling = self._commands.is_cooling(Kind.REPLICATE, container.container_id)
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
            self._removals.unblock(change, case)
        return is_rebuilt and ordered == sum(row.copies for row in copied)

    def _copy(self, change: Change, case: Case, row: Row) -> bool:
        """Order one copy, if there are a source and a target for it."""
        copies = self.pairs(row.sources, self._useful_targets(case, row))
        for copy in copies:
            why = row.reason + row.told(copy.source_id)
            command_id = self.order_copy(change, case, copy, why=why)
            _log.info(
                "replicate_ordered",
                container_id=case.container.container_id,
                command_id=command_id,
                source_id=copy.source_id,
                target_id=copy.target_id,
            )
        return bool(copies)

    def _is_waiting_for(self, case: Case, from_ids: Sequence[str]) -> bool:
        """Whether all sources have enough to do; then nobody asks again until one has room."""
        if not from_ids or self._has_room(from_ids):
            return False
        self._busy_sources[case.container.container_id] = tuple(from_ids)
        return True

    def _is_still_waiting(self, container_id: int) -> bool:
        busy = self._busy_sources.get(container_id)
        return busy is not None and not self._has_room(busy)

    def _has_room(self, datanode_ids: Iterable[str]) -> bool:
        return any(
            self._commands.replication_load(node) < self._commands.replication_limit(node)
            for node in datanode_ids
        )
