"""The datanodes of the cluster and their health.

A datanode is HEALTHY, STALE or DEAD, depending on the time since its last heartbeat on the
monotonic clock. When the SCM starts, no datanode has sent a heartbeat to it yet. Every datanode is
then STALE, so it gets no new replicas. It becomes DEAD only if it sends no heartbeat for
`dead_after_ms` after the start.
"""

import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from merkle.replica import LAYOUT_VERSION
from scm.state.clock import ScmClock
from scm.state.database import StateChange, StateDatabase
from scm.state.entities import Liveness, Node, NodeHealthState, OpState, Replica, ReportedVolume
from scm.state.options import ScmOptions
from scm.state.starts import ReportedStart
from suture.errors import Code, RefusedError
from suture.runtime.backoff import backoff_s

AVOIDED_HEARTBEATS: Final = 2  # heartbeat intervals to pause after the first failed write to a node

_log = structlog.get_logger("suture.scm")


@dataclass(frozen=True, slots=True)
class Registration:
    """The facts that a datanode sends when it registers."""

    datanode_id: str
    address: str
    rack: str
    version: str
    cluster_id: str  # empty = the datanode has not joined a cluster yet
    boot_id: int
    volumes: tuple[ReportedVolume, ...]
    op_state: OpState | None = None  # as the datanode stores it; None = never set
    op_expiry_ms: int = 0
    layout_version: int = LAYOUT_VERSION
    seen_starts: tuple[ReportedStart, ...] = ()  # starts of this cluster's control planes
    refused: tuple[str, ...] = ()  # texts about invalid parts that were left out


def health_of(age_s: float, *, has_called: bool, options: ScmOptions) -> NodeHealthState:
    """Return the health of a datanode.

    `age_s` is the time since its last heartbeat, or since the start of the SCM if there was none.
    """
    if age_s * 1000 > options.dead_after_ms:
        return NodeHealthState.DEAD
    if not has_called or age_s * 1000 > options.stale_after_ms:
        return NodeHealthState.STALE
    return NodeHealthState.HEALTHY


class NodeManager:
    """The registered datanodes and their health. Callers must hold the control plane's lock."""

    def __init__(self, state: StateDatabase, clock: ScmClock, options: ScmOptions) -> None:
        self._state = state
        self._clock = clock
        self._options = options
        self._managed_racks = frozenset(re.findall(r"[^,\s]+", options.managed_racks))
        self._started_at_s = clock.monotonic_s()
        self._live: dict[str, Liveness] = {}
        self._fresh_ms = min(options.stale_after_ms, options.dead_after_ms)
        self._registered: set[str] = set()  # datanodes that registered with this process
        self._failed_at_s: dict[str, float] = {}
        self._failures: dict[str, int] = {}  # of writers, since the last success or registration
        self._seen_health: dict[str, NodeHealthState] = {}
        self._rest: list[str] = []  # nodes that the next calls of `note_health` evaluate
        self._rack_count: int | None = None  # counted on request
        self.dead: set[str] = set()
        """Datanodes that `note_health` found DEAD and that have sent no heartbeat since."""

    def register(self, change: StateChange, registration: Registration) -> bool:
        """Record a registration. Return True if the process of the datanode is a new one.

        Raise RefusedError(WRONG_CLUSTER) if the datanode belongs to another cluster. Raise
        RefusedError(WRONG_DATANODE) if another live datanode has the same address.
        """
        if registration.cluster_id and registration.cluster_id != self._state.cluster_id:
            raise RefusedError(
                Code.WRONG_CLUSTER,
                f"cannot register datanode {registration.datanode_id}: it belongs to cluster "
                f"{registration.cluster_id}, this is {self._state.cluster_id}",
                hint="set node.scm to its own SCM, or configure empty volumes",
                datanode_id=registration.datanode_id,
            )
        self._check_address(change, registration)
        known = self._state.nodes.get(registration.datanode_id)
        is_believed = known is None or self._is_newer(change, registration, known)
        now_ms = self._clock.wall_ms()
        node = Node(
            datanode_id=registration.datanode_id,
            address=registration.address,
            rack=registration.rack,
            version=registration.version,
            boot_id=registration.boot_id,
            op_state=(registration.op_state or OpState.IN_SERVICE)
            if known is None or is_believed
            else known.op_state,
            op_expiry_ms=registration.op_expiry_ms
            if known is None or is_believed
            else known.op_expiry_ms,
            registered_at_ms=now_ms if known is None else known.registered_at_ms,
            last_heartbeat_at_ms=now_ms,
            layout_version=registration.layout_version,
        )
        change.put(self._state.nodes, node)
        if node.datanode_id not in self._registered:
            self._registered.add(node.datanode_id)
            change.on_undo(partial(self._registered.discard, node.datanode_id))
        self._rack_count = None
        self._failures.pop(node.datanode_id, None)
        self.record_heartbeat(node.datanode_id, registration.volumes, ())
        change.on_commit(
            lambda: _log.info(
                "node_registered",
                datanode_id=node.datanode_id,
                address=node.address,
                rack=node.rack,
                is_new=known is None,
            )
        )
        if node.is_read_only:
            change.on_commit(
                lambda: _log.warning(
                    "node_read_only",
                    datanode_id=node.datanode_id,
                    layout_version=node.layout_version,
                    layout_version_here=LAYOUT_VERSION,
                )
            )
        return known is None or known.boot_id != node.boot_id

    def _check_address(self, change: StateChange, registration: Registration) -> None:
        """Raise RefusedError if another live datanode has the same address.

        Otherwise, data for one of them would be written to the other, and would count as replicas
        of both. A reinstalled host has a new id at its old address. The new id is admitted when the
        old id is STALE. If the old id then returns with replicas and the new id has none, the old
        id gets the address back, because its replicas would be missing otherwise.
        """
        count_on = self._state.replicas.count_on
        for node in self._state.nodes.values():
            datanode_id = node.datanode_id
            if node.address != registration.address or datanode_id == registration.datanode_id:
                continue
            if (
                datanode_id in self._registered
                and self.health(datanode_id) is NodeHealthState.HEALTHY
            ):
                if count_on(registration.datanode_id) and not count_on(datanode_id):
                    change.on_commit(partial(self.forget, datanode_id))  # it must register again
                    continue
                raise RefusedError(
                    Code.WRONG_DATANODE,
                    f"cannot register datanode {registration.datanode_id}: datanode "
                    f"{datanode_id} uses the same address {node.address}",
                    hint="set node.advertise of each agent to its own address",
                    datanode_id=registration.datanode_id,
                )

    def _is_newer(self, change: StateChange, registration: Registration, known: Node) -> bool:
        """Return True if a datanode's stored operational state must replace that of the SCM.

        That is the case if the state of the SCM was restored from a backup, which may be older.
        """
        if registration.op_state is None or self._state.restored is None:
            return False
        if registration.op_state is not known.op_state:
            change.on_commit(
                _log.warning,
                "node_op_state_adopted",
                datanode_id=known.datanode_id,
                op_state=registration.op_state,
                op_state_here=known.op_state,
            )
        return True

    def is_current(self, datanode_id: str, boot_id: int) -> bool:
        """Return True if a heartbeat comes from the process that registered last.

        The process must also have registered since this SCM started. Otherwise, it must register
        again and report all its replicas. Without this rule, safe mode would have to wait for the
        next full report, for up to an hour.
        """
        node = self._state.nodes.get(datanode_id)
        return node is not None and node.boot_id == boot_id and datanode_id in self._registered

    def record_heartbeat(
        self,
        datanode_id: str,
        volumes: Iterable[ReportedVolume],
        queues: Iterable[tuple[str, int]],
    ) -> None:
        """Record the time of a heartbeat, and the volumes and command queues that it reports."""
        if self.health(datanode_id) is NodeHealthState.DEAD:
            self._rack_count = None
        self.dead.discard(datanode_id)
        self._live[datanode_id] = Liveness(
            heard_at_s=self._clock.monotonic_s(),
            heartbeat_at_ms=self._clock.wall_ms(),
            volumes=tuple(volumes),
            queues=tuple(queues),
        )

    def health(self, datanode_id: str) -> NodeHealthState:
        """Return the current health of a datanode. Return DEAD if it never registered."""
        if self._state.nodes.get(datanode_id) is None:
            return NodeHealthState.DEAD
        live = self._live.get(datanode_id)
        since_s = self._started_at_s if live is None else live.heard_at_s
        age_s = self._clock.monotonic_s() - since_s
        return health_of(age_s, has_called=live is not None, options=self._options)

    def health_of(self, datanode_ids: Iterable[str]) -> list[tuple[Node | None, NodeHealthState]]:
        """Return the registration and the current health of each of these datanodes.

        The registration is None if the datanode never registered. Each read of a client calls this
        method, so it must be fast (ADR 0041).
        """
        now_s = self._clock.monotonic_s()
        found = self._state.nodes.get
        nodes: list[tuple[Node | None, NodeHealthState]] = []
        for datanode_id in datanode_ids:
            node, live = found(datanode_id), self._live.get(datanode_id)
            if node is None:
                health = NodeHealthState.DEAD
            elif live is not None and (now_s - live.heard_at_s) * 1000 <= self._fresh_ms:
                health = NodeHealthState.HEALTHY
            else:
                since_s = self._started_at_s if live is None else live.heard_at_s
                health = health_of(
                    now_s - since_s, has_called=live is not None, options=self._options
                )
            nodes.append((node, health))
        return nodes

    def is_gone(self, datanode_id: str) -> bool:
        """Return True if a datanode is DEAD and is not expected to return.

        A datanode in maintenance is expected to return.
        """
        node = self._state.nodes.get(datanode_id)
        is_resting = node is not None and node.op_state is OpState.IN_MAINTENANCE
        return not is_resting and self.health(datanode_id) is NodeHealthState.DEAD

    def is_away(self, datanode_id: str) -> bool:
        """Return True if a datanode has sent no heartbeat for longer than `stale_after_ms`.

        If there was no heartbeat since the SCM started, the time since the start counts.
        """
        live = self._live.get(datanode_id)
        since_s = self._started_at_s if live is None else live.heard_at_s
        return (self._clock.monotonic_s() - since_s) * 1000 > self._options.stale_after_ms

    def forget(self, datanode_id: str) -> None:
        """Delete the facts in memory about a datanode that was removed.

        If the datanode returns, it must register again.
        """
        self.dead.discard(datanode_id)
        self._registered.discard(datanode_id)
        self._live.pop(datanode_id, None)
        self._seen_health.pop(datanode_id, None)
        self._failed_at_s.pop(datanode_id, None)
        self._failures.pop(datanode_id, None)
        self._rack_count = None

    def live_replicas(self, replicas: Sequence[Replica]) -> Sequence[Replica]:
        """Return the replicas whose datanodes are not DEAD.

        The last report of a dead datanode must not prevent a decision. However, the datanode may
        return with its replica. Therefore, the SCM deletes nothing because of that report, and
        sends pending deletes to the datanode again.
        """
        return tuple(r for r in replicas if self.health(r.datanode_id) is not NodeHealthState.DEAD)

    def takes_replicas(self, datanode_id: str) -> bool:
        """Return True if a datanode can receive new replicas.

        It must be reachable and in service, have the layout version of the SCM, and be managed.
        """
        node = self._state.nodes.get(datanode_id)
        return (
            node is not None
            and node.op_state is OpState.IN_SERVICE
            and self.takes_commands(datanode_id)
            and self.is_reachable(datanode_id)
        )

    def is_managed(self, datanode_id: str) -> bool:
        """Return True if the SCM manages the replicas of a datanode.

        If the option `managed_racks` lists racks, the SCM does not change replicas on other racks.
        """
        return not self._managed_racks or self.rack(datanode_id) in self._managed_racks

    def takes_commands(self, datanode_id: str) -> bool:
        """Return True if commands about replicas may be sent to a datanode.

        It must have the layout version of the SCM, and be managed.
        """
        node = self._state.nodes.get(datanode_id)
        return node is None or (not node.is_read_only and self.is_managed(datanode_id))

    def is_reachable(self, datanode_id: str) -> bool:
        """Return True if a datanode is HEALTHY.

        It then gets commands, and other datanodes call it.
        """
        return self.health(datanode_id) is NodeHealthState.HEALTHY

    def liveness(self, datanode_id: str) -> Liveness | None:
        """Return the facts of a datanode's last heartbeat.

        Return None if there was none since the start.
        """
        return self._live.get(datanode_id)

    def heartbeat_at_ms(self, node: Node) -> int:
        """Return the time of a datanode's last heartbeat, in ms since 1970."""
        live = self._live.get(node.datanode_id)
        return node.last_heartbeat_at_ms if live is None else live.heartbeat_at_ms

    def reported_queues(self, datanode_id: str) -> Mapping[str, int]:
        """Return the number of commands that a datanode reported as queued or running, by type."""
        live = self._live.get(datanode_id)
        return {} if live is None else dict(live.queues)

    def last_heartbeat_at_s(self, datanode_id: str) -> float:
        """Return the time of a datanode's last heartbeat, in seconds of the monotonic clock.

        Return 0.0 if there was none since the start.
        """
        live = self._live.get(datanode_id)
        return 0.0 if live is None else live.heard_at_s

    def rack(self, datanode_id: str) -> str:
        """Return the rack of a datanode. Return an empty string if it never registered."""
        node = self._state.nodes.get(datanode_id)
        return "" if node is None else node.rack

    def rack_count(self) -> int:
        """Return the number of racks that have at least one datanode that is not DEAD.

        The number is cached until the health of a datanode is evaluated again.
        """
        if self._rack_count is None:
            racks = {
                node.rack
                for node in self._state.nodes.values()
                if self.health(node.datanode_id) is not NodeHealthState.DEAD
            }
            self._rack_count = len(racks)
        return self._rack_count

    def write_failed(self, datanode_id: str) -> None:
        """Record that a writer reported a failed write to this datanode."""
        self._failed_at_s[datanode_id] = self._clock.monotonic_s()
        self._failures[datanode_id] = self._failures.get(datanode_id, 0) + 1

    def write_succeeded(self, datanode_id: str) -> None:
        """Record that a block was stored on this datanode.

        This ends the pause after failed writes.
        """
        self._failures.pop(datanode_id, None)

    def is_avoided(self, datanode_id: str) -> bool:
        """Return True if writers get no new blocks on this datanode, because writes to it failed.

        The pause becomes longer with every failure, and ends when the datanode registers again.
        """
        count = self._failures.get(datanode_id, 0)
        if not count:
            return False
        first_s = AVOIDED_HEARTBEATS * self._options.heartbeat_interval_ms / 1000
        pause_s = backoff_s(count, first_s=first_s)
        return self._clock.monotonic_s() - self._failed_at_s[datanode_id] < pause_s

    def has_failed_lately(self, datanode_id: str) -> bool:
        """Return True if a writer recently reported a failed write to this datanode.

        Recently means within the last `stale_after_ms`.
        """
        failed_at_s = self._failed_at_s.get(datanode_id)
        if failed_at_s is None:
            return False
        return (self._clock.monotonic_s() - failed_at_s) * 1000 < self._options.stale_after_ms

    def nodes_with_changed_health(self) -> list[str]:
        """Return the datanodes whose health has changed since `note_health` last recorded it."""
        return [
            node.datanode_id
            for node in self._state.nodes.values()
            if self.health(node.datanode_id) is not self._seen_health.get(node.datanode_id)
        ]

    def note_health(self, change: StateChange, *, count_max: int = sys.maxsize) -> list[str]:
        """Record and log changes of health for up to `count_max` datanodes. Return their ids.

        An empty result means that all datanodes were evaluated. A call continues at the datanode
        where the last call ended. If each call evaluated all datanodes, a thousand datanodes that
        die at once would require a million evaluations.

        After a start, a datanode without any heartbeat is first STALE. This does not count as a
        change. Otherwise, the SCM would have to process the replicas of all datanodes after each
        restart.
        """
        changed: list[str] = []
        self._rack_count = None
        if not self._rest:
            self._rest = [node.datanode_id for node in reversed(self._state.nodes.values())]
        while self._rest and len(changed) < count_max:
            node = self._state.nodes.get(self._rest.pop())
            if node is not None and self._record_health(change, node):
                changed.append(node.datanode_id)
        return changed

    def _record_health(self, change: StateChange, node: Node) -> bool:
        """Record and log a change of a datanode's health.

        Return True if the replicas of the datanode must be processed because of the change.
        """
        health = self.health(node.datanode_id)
        before = self._seen_health.get(node.datanode_id)
        if health is before:
            return False
        self._see(change, node.datanode_id, health)
        if before is None and health is NodeHealthState.STALE:
            return False  # no call since this start: nothing has changed
        # This keeps the time in the row useful after a restart, without a disk write per heartbeat.
        heard_at_ms = self.heartbeat_at_ms(node)
        is_online = health is not NodeHealthState.DEAD and (
            node.was_online or health is NodeHealthState.HEALTHY
        )
        row = replace(node, last_heartbeat_at_ms=heard_at_ms, was_online=is_online)
        change.put(self._state.nodes, row)
        level = logging.INFO if health is NodeHealthState.HEALTHY else logging.WARNING
        change.on_commit(
            _log.log, level, "node_health_changed", datanode_id=node.datanode_id, health=health
        )
        return True

    def _see(self, change: StateChange, datanode_id: str, health: NodeHealthState) -> None:
        """Record that the change of a datanode's health was processed.

        If the change of the state is rolled back, restore the earlier health. The next call of
        `note_health` then processes the datanode again.
        """
        seen, dead = self._seen_health, self.dead
        before, was_dead = seen.get(datanode_id), datanode_id in dead

        def restore() -> None:
            seen.pop(datanode_id)
            if before is not None:
                seen[datanode_id] = before
            (dead.add if was_dead else dead.discard)(datanode_id)
            self._rest.clear()  # evaluate all nodes again

        change.on_undo(restore)
        seen[datanode_id] = health
        (dead.add if health is NodeHealthState.DEAD else dead.discard)(datanode_id)
