"""The replication manager: looks at containers, and orders what they lack or have too much of.

    report, node, time ──► look again ──judge──► under queue ──► replicate ──┐
                                           └───► over queue  ──► delete    ──┴──► commands

Every closed container is looked at when something about it changed, and in rounds besides. The
most urgent goes first; what cannot be done now (no source with room, no target) waits in its queue,
a little less urgent each time, so that it does not stand in the way of what can be done.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import structlog

from scm import shards
from scm.cases import Cases
from scm.clock import Clock
from scm.commands import Commands
from scm.facts import Container, ContainerState, Health, Kind
from scm.loads import DELETE_LIMIT, in_flight_limit, least_loaded
from scm.nodes import Nodes
from scm.options import ScmOptions
from scm.placement import choose_targets
from scm.replication import (
    OUT_OF_SERVICE_WEIGHT,
    OVER,
    UNDER,
    Case,
    Condition,
    Judgement,
    judge,
    neighbours,
    sources,
    unblock_victim,
    victims,
)
from scm.state import Change, State

LOOKS_PER_TURN: Final = 2_000  # containers judged while the lock is held
ATTEMPTS_PER_TURN: Final = 500
IMPORT_SPACE_FACTOR: Final = 2  # a replica needs its size beside itself until it is whole

_CLOSED: Final = frozenset({ContainerState.CLOSED})
_JUDGED: Final = frozenset({ContainerState.CLOSED, ContainerState.QUASI_CLOSED})

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy as it would be ordered."""

    source_id: str
    target_id: str


class Upkeep:
    """Keeps closed containers at their number of replicas. Callers hold the control's lock."""

    def __init__(
        self,
        state: State,
        nodes: Nodes,
        commands: Commands,
        cases: Cases,
        clock: Clock,
        options: ScmOptions,
    ) -> None:
        self._state = state
        self._nodes = nodes
        self._commands = commands
        self._cases = cases
        self._clock = clock
        self._options = options
        self._due: dict[int, None] = {}
        self._round_at = 1
        self.under: dict[int, tuple[int, int]] = {}  # id -> weight, times put back
        self.over: dict[int, None] = {}
        self.conditions: dict[int, Condition] = {}  # of those that are not HEALTHY
        self.round_at_ms = 0  # when the last round through all containers ended

    def look_at(self, container_ids: Iterable[int]) -> None:
        """Have containers looked at in the next turn."""
        self._due.update(dict.fromkeys(container_ids))

    def look_at_node(self, datanode_id: str) -> None:
        """Have all containers of a node looked at: it came, went, or is to leave."""
        self.look_at(self._state.replicas.on(datanode_id))

    def turn(self, change: Change) -> list[int]:
        """Look at what is due and a part of the rest, and order what can be ordered.

        Returns the containers that were looked at.
        """
        looked_at = self._look()
        if self.under:
            self._serve_under(change)
        if self.over:
            self._serve_over(change)
        return looked_at

    def copies(self, case: Case, judgement: Judgement) -> list[Copy]:
        """Return the copies that could be ordered now, without more load on anyone than allowed."""
        from_ids = [p.datanode_id for p in sources(case)]
        return self.pairs(from_ids, self._useful_targets(case, judgement))

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

    def _useful_targets(self, case: Case, judgement: Judgement) -> list[str]:
        found = self.targets(case, judgement.copies)
        if judgement.condition is not Condition.MIS_REPLICATED:
            return found
        # A copy on a rack that has one would be removed again, and made again, for ever.
        racks = {p.rack for p in case.placed}
        return [node for node in found if self._nodes.rack(node) not in racks]

    def targets(self, case: Case, count: int) -> list[str]:
        """Choose up to `count` nodes for copies."""
        used, excluded = neighbours(case)
        return choose_targets(
            self._cases.candidates(),
            count=count,
            needed_bytes=self.needed_bytes(case),
            used_racks=[self._nodes.rack(node) for node in sorted(used)],
            excluded=used | excluded,
            container_id=case.container.container_id,
            seed=self._options.seed,
        )

    def needed_bytes(self, case: Case) -> int:
        """Return the space a copy needs while it is made."""
        sizes = [p.replica.bytes_used for p in case.placed]
        return IMPORT_SPACE_FACTOR * max(sizes, default=0)

    def order_copy(self, change: Change, case: Case, copy: Copy) -> int:
        """Queue a replicate command; return its id."""
        return self._commands.queue(
            change,
            Kind.REPLICATE,
            case.container.container_id,
            copy.source_id,
            target_id=copy.target_id,
            size_bytes=self.needed_bytes(case),
        )

    def in_flight_limit(self) -> int:
        """Return how many replicas may be on their way; 0: no limit."""
        healthy = sum(
            self._nodes.health(node.datanode_id) is Health.HEALTHY
            for node in self._state.nodes.values()
        )
        return in_flight_limit(healthy, self._options.inflight_factor_percent)

    def _look(self) -> list[int]:
        due = list(self._due)[:LOOKS_PER_TURN]
        for container_id in due:
            del self._due[container_id]
        end = self._state.counters["next_container_id"]
        for _ in range(min(LOOKS_PER_TURN - len(due), ceil(end / self._turns_per_round()))):
            due.append(self._round_at)
            self._round_at += 1
            if self._round_at >= end:
                self._round_at, self.round_at_ms = 1, self._clock.wall_ms()
        for container_id in due:
            self._look_at_one(container_id)
            self._note_condition(container_id)
        return due

    def _note_condition(self, container_id: int) -> None:
        container = self._state.containers.get(container_id)
        condition = Condition.HEALTHY
        if container is not None and container.state in _JUDGED:
            case = self._cases.case(container)
            condition = shards.condition(case) if container.scheme else judge(case).condition
        if condition is Condition.HEALTHY:
            self.conditions.pop(container_id, None)
        else:
            self.conditions[container_id] = condition

    def _turns_per_round(self) -> int:
        return max(1, self._options.check_interval_ms // self._options.heartbeat_interval_ms)

    def _look_at_one(self, container_id: int) -> None:
        self.over.pop(container_id, None)
        container = self._state.containers.get(container_id)
        if container is None or container.state not in _CLOSED:
            self.under.pop(container_id, None)
            return
        if container.scheme:
            self._look_at_shards(container_id, self._cases.case(container))
            return
        judgement = judge(self._cases.case(container))
        if judgement.condition in UNDER and judgement.copies:
            _weight, repeat = self.under.get(container_id, (0, 1))
            self.under[container_id] = (judgement.weight, repeat)
        else:
            self.under.pop(container_id, None)
        if judgement.condition in OVER and judgement.surplus:
            self.over[container_id] = None

    def _look_at_shards(self, container_id: int, case: Case) -> None:
        """A lost shard is rebuilt, by `scm.coding`; here are those about to go, and the surplus."""
        if shards.to_copy(case) and not case.adds:
            self.under.setdefault(container_id, (OUT_OF_SERVICE_WEIGHT, 1))
        else:
            self.under.pop(container_id, None)
        if shards.surplus(case):
            self.over[container_id] = None

    def _serve_under(self, change: Change) -> None:
        limit = self.in_flight_limit()
        again: dict[int, tuple[int, int]] = {}
        urgent = heapq.nsmallest(
            ATTEMPTS_PER_TURN,
            ((weight + repeat, number) for number, (weight, repeat) in self.under.items()),
        )
        for _urgency, container_id in urgent:
            if limit and self._state.commands.add_count >= limit:
                break
            weight, repeat = self.under.pop(container_id)
            container = self._state.containers.get(container_id)
            if container is not None and not self._copy(change, container):
                again[container_id] = (weight, repeat + 1)
        self.under.update(again)

    def _copy(self, change: Change, container: Container) -> bool:
        """Order the copies a container lacks, as things are now; whether that is all of them."""
        case = self._cases.case(container)
        if container.scheme:
            return self._copy_shards(change, case)
        judgement = judge(case)
        if judgement.condition not in UNDER or not judgement.copies:
            return True
        if self._commands.is_cooling(Kind.REPLICATE, container.container_id):
            return False
        copies = self.copies(case, judgement)
        for copy in copies:
            command_id = self.order_copy(change, case, copy)
            _log.info(
                "replicate_ordered",
                container_id=container.container_id,
                command_id=command_id,
                source_id=copy.source_id,
                target_id=copy.target_id,
            )
        if not copies and not self.targets(case, 1):
            self._unblock(change, case)
        return len(copies) == judgement.copies

    def _copy_shards(self, change: Change, case: Case) -> bool:
        """Copy the shards that are about to go, each from its node; whether all were ordered."""
        wanted = [] if case.adds else shards.to_copy(case)
        if self._commands.is_cooling(Kind.REPLICATE, case.container.container_id):
            return not wanted
        copies = [
            copy
            for shard, target_id in zip(wanted, self.targets(case, len(wanted)), strict=False)
            for copy in self.pairs([shard.datanode_id], [target_id])
        ]
        for copy in copies:
            self.order_copy(change, case, copy)
        return len(copies) == len(wanted)

    def _unblock(self, change: Change, case: Case) -> None:
        """Remove a bad replica that takes the place of a good one, when there is no other place."""
        victim = unblock_victim(case)
        if victim is not None and self.delete(
            change, case.container, victim.datanode_id, keep_count=1
        ):
            _log.warning(
                "unhealthy_replica_gives_way",
                container_id=case.container.container_id,
                datanode_id=victim.datanode_id,
            )

    def _serve_over(self, change: Change) -> None:
        for container_id in list(self.over)[:ATTEMPTS_PER_TURN]:
            del self.over[container_id]
            container = self._state.containers.get(container_id)
            if container is None or container.state not in _CLOSED:
                continue
            case = self._cases.case(container)
            done = [
                self.delete(
                    change,
                    container,
                    victim.datanode_id,
                    keep_count=container.replication_factor,
                )
                for victim in (shards.surplus(case) if container.scheme else victims(case))
            ]
            if not all(done):
                self.over[container_id] = None  # at the end: others may have less to do

    def delete(
        self, change: Change, container: Container, datanode_id: str, *, keep_count: int
    ) -> bool:
        """Order a replica removed; False while its node has enough of that to do."""
        if self._commands.delete_load(datanode_id) >= DELETE_LIMIT or self._commands.is_cooling(
            Kind.DELETE, container.container_id
        ):
            return False
        command_id = self._commands.queue(
            change,
            Kind.DELETE,
            container.container_id,
            datanode_id,
            force=True,
            keep_count=keep_count,
        )
        _log.info(
            "delete_ordered",
            container_id=container.container_id,
            command_id=command_id,
            datanode_id=datanode_id,
        )
        return True
