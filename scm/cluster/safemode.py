"""Safe mode: the SCM copies, changes and deletes no data before datanodes have reported.

There are three kinds of start:

- Hot restart: the SCM reads the replica map from its disk. Safe mode waits for the datanodes that
  were online before.
- Cold start, which an operator requests: the SCM discards the replica map and builds it again from
  reports. Safe mode waits for all known datanodes.
- Restored state: as at a cold start, but an operator must also recover the data that was written
  after the backup. This also applies if datanodes have seen a later state
  (`scm.administration.older_states`).

After a hot restart, the replica map is as old as the last stop of the SCM. Decisions on it could
copy replicas that exist, and could delete last copies. Therefore, each datanode that was online
must report all its replicas once. Safe mode does not wait for datanodes that were dead, in
maintenance or decommissioned.

A datanode that does not return must not prevent writes to the cluster. Therefore, safe mode no
longer waits for a datanode that has sent no heartbeat for `stale_after_ms`. After
`safemode_wait_ms`, it waits for no datanode. Safe mode then ends if two conditions hold (as Ozone's
`hdds.scm.safemode.threshold.pct` and `hdds.scm.safemode.min.datanode`):

- Containers: almost all closed containers that keys need, and that were readable before, have been
  reported. Of an erasure-coded container, enough shards to read it have been reported.
- Hosts: as many datanodes have reported as a write needs.

After a cold start, safe mode waits longer for silent datanodes, because the SCM does not know their
data. If the conditions do not hold after that time, only an operator can end safe mode.

An operator can also enter safe mode. It then lasts until an operator ends it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from merkle.replica import ReplicaState
from scm.cluster.decision_context import ControlComponent, DecisionContext
from scm.state.database import StateChange
from scm.state.entities import (
    ContainerState,
    ControlKind,
    OpState,
    WorkControl,
    WorkKind,
    data_count_of,
)
from scm.state.replicas.arena import Rows
from scm.state.replicas.replica_table import NO_WORD
from scm.state.state_access import locked, state_change
from scm.state.state_metadata import RestoreRecord
from suture.errors import Code, RefusedError

_OFF: Final = frozenset({OpState.IN_MAINTENANCE, OpState.DECOMMISSIONED})
"""Operational states in which a datanode may be switched off."""
_CLOSED: Final = frozenset({ContainerState.CLOSED, ContainerState.QUASI_CLOSED})
_UNREADABLE: Final = [
    list(ReplicaState).index(state) for state in (ReplicaState.UNHEALTHY, ReplicaState.RECOVERING)
]
"""Numbers of the replica states in which a replica cannot be read."""
COLD_START_FACTOR: Final = 4  # a cold start waits longer: silent datanodes may be booting
ENTERED: Final = (ControlKind.SAFE_MODE.value, WorkKind.ALL.value, "")  # key of the setting
BY_OPERATOR: Final = "entered by an operator"
LEAVE_HINT: Final = "suture scm safemode --leave ends it without them"


@dataclass(frozen=True, slots=True)
class SafeModeStatus:
    """The status of safe mode. `is_open` is True if safe mode is off."""

    is_open: bool
    reason: str
    missing: tuple[str, ...] = ()
    is_cold: bool = False
    expected_count: int = 0
    left_s: float = 0.0  # time until nodes are no longer waited for


@dataclass(frozen=True, slots=True)
class ReportedCount:
    """The number of closed containers that keys need, and how many of them were reported."""

    reported_count: int
    needed_count: int


def evaluate(
    expected: Collection[str],
    seen: Collection[str],
    *,
    away: Collection[str] = (),
    hosts_needed: int,
    containers: Callable[[], ReportedCount],
    percent: int,
    waited_s: float,
    wait_s: float,
    is_cold: bool = False,
) -> SafeModeStatus:
    """Return the status of safe mode.

    `expected` are the datanodes that must report: those that were online before the start, or all
    known datanodes after a cold start. `seen` are the datanodes that have reported all their
    replicas, and `away` those that are silent. `containers` counts the reported containers.

    If a cold start knows no datanode, safe mode lasts at least `wait_s`, so that datanodes can
    register. Unexpected datanodes in `seen` also count as hosts for writes.
    """
    missing = tuple(sorted(set(expected) - set(seen)))
    count = len(expected)
    left_s = max(0.0, wait_s - waited_s)
    which = "known nodes" if is_cold else "nodes that were online"

    def answer(is_open: bool, reason: str) -> SafeModeStatus:
        return SafeModeStatus(is_open, reason, missing, is_cold, count, 0.0 if is_open else left_s)

    if is_cold and not count and left_s:
        return answer(False, f"no node is known; {left_s:.0f} s more for those that come")
    if not missing:
        return answer(True, f"all {count} {which} have reported")
    share = f"{count - len(missing)} of {count} {which} have reported"
    extra_count = len(set(seen) - set(expected))
    if extra_count:
        share += f", and {extra_count} more"
    if left_s and (is_cold or set(missing) - set(away)):
        return answer(False, f"{share}; at most {left_s:.0f} s more for the others")
    if len(seen) < hosts_needed:
        return answer(False, f"{share}, and a write needs {hosts_needed}; {LEAVE_HINT}")
    found = containers()
    held = f"{found.reported_count} of {found.needed_count} closed containers"
    if found.reported_count * 100 < found.needed_count * percent:
        return answer(False, f"{share}, with {held}, and {percent} % must be; {LEAVE_HINT}")
    return answer(True, f"{share}, with {held}; the others are away")


class SafeMode(ControlComponent):
    """Safe mode of the control plane.

    After safe mode has ended, it begins again only if an operator enters it, or if datanodes report
    that the state is outdated. Callers must hold the control plane's lock, except for methods
    decorated with `@locked` or `@state_change`.
    """

    def __init__(self, basis: DecisionContext, confirmed: Collection[str]) -> None:
        """Enter safe mode.

        `confirmed` is the set of datanodes that have reported all their replicas.
        """
        super().__init__(basis)
        self._confirmed = confirmed
        self._begin()

    def _begin(self) -> None:
        state, options = self._state, self._options
        self._is_cold = state.is_cold
        self._wait_s = options.safemode_wait_ms / 1000
        if state.is_cold:
            self._wait_s *= COLD_START_FACTOR
        self._percent = options.safemode_container_percent
        self._write_majority = options.replication_factor // 2 + 1
        self._started_at_s = self._clock.monotonic_s()
        self._online = frozenset(
            node.datanode_id for node in state.nodes.values() if node.was_online or state.is_cold
        )
        self._seen: set[str] = set()
        self._reported: tuple[int, ReportedCount] | None = (
            None  # the number of seen nodes, and the result for them
        )
        self._gate = SafeModeStatus(False, "just started")

    @property
    def is_on(self) -> bool:
        """Return True while safe mode is on."""
        return not self._gate.is_open

    @locked
    def status(self) -> SafeModeStatus:
        """Evaluate safe mode again, and return its status."""
        return self.reevaluate()

    def reevaluate(self) -> SafeModeStatus:
        """Return the status of safe mode.

        The method evaluates the status again, unless safe mode has ended or an operator has entered
        it.
        """
        if self._state.settings.get(ENTERED) is not None:
            self._gate = SafeModeStatus(False, BY_OPERATOR)
        elif not self._gate.is_open:
            counted = {
                node.datanode_id for node in self._state.nodes.values() if node.op_state not in _OFF
            }
            self._seen |= counted.intersection(self._confirmed)
            expected = self._online & counted
            self._gate = evaluate(
                expected,
                self._seen,
                away={node for node in expected - self._seen if self._nodes.is_away(node)},
                hosts_needed=min(self._write_majority, len(expected)),
                containers=self._containers,
                percent=self._percent,
                waited_s=self._clock.monotonic_s() - self._started_at_s,
                wait_s=self._wait_s,
                is_cold=self._is_cold,
            )
            restored = self._state.restored
            if self._gate.is_open and restored is not None:
                reason = f"{self._gate.reason}; {_to_recover(restored)}"
                self._gate = replace(self._gate, is_open=False, reason=reason)
        return self._gate

    def begin_again(self, change: StateChange) -> None:
        """Enter safe mode as after a cold start, because datanodes have seen a later state."""
        before, was_cold = self.__dict__.copy(), self._state.is_cold
        change.on_undo(lambda: self.__dict__.update(before))
        change.on_undo(lambda: setattr(self._state, "is_cold", was_cold))
        self._state.is_cold = True
        self._begin()

    @state_change
    def enter(self, change: StateChange) -> SafeModeStatus:
        """Enter safe mode on request of an operator.

        It lasts until an operator ends it, even over a restart.
        """
        self._restore_on_rollback(change)
        all_work, now_ms = WorkKind.ALL, self._clock.wall_ms()
        setting = WorkControl(ControlKind.SAFE_MODE, all_work, "", "", now_ms, 0)
        change.put(self._state.settings, setting)
        return self.reevaluate()

    def _restore_on_rollback(self, change: StateChange) -> None:
        """Ensure that the present status of safe mode is restored if the change is rolled back."""
        before = self._gate
        change.on_undo(lambda: setattr(self, "_gate", before))

    @state_change
    def leave(self, change: StateChange) -> SafeModeStatus:
        """End safe mode on request of an operator.

        Raise RefusedError if the state was restored and an operator has not recovered it yet.
        """
        restored = self._state.restored
        if restored is not None:
            raise RefusedError(
                Code.SAFE_MODE,
                f"cannot leave safe mode: {_to_recover(restored)}",
                hint="suture scm recover",
            )
        self._restore_on_rollback(change)
        if self._state.settings.get(ENTERED) is not None:
            change.remove(self._state.settings, ENTERED)
        if not self._gate.is_open:
            self._gate = replace(self._gate, is_open=True, reason="opened by an operator", left_s=0)
        return self._gate

    def _containers(self) -> ReportedCount:
        """Return the number of reported containers.

        The result is cached until another datanode has reported. The count scans all containers
        that keys need, and every call needs it while safe mode is on.
        """
        if self._reported is None or self._reported[0] != len(self._seen):
            self._reported = len(self._seen), self._count()
        return self._reported[1]

    def _count(self) -> ReportedCount:
        state = self._state
        needed = {
            container.container_id: data_count_of(container.scheme)
            for container_id in state.keys.last_bcsids()
            if (container := state.containers.get(container_id)) is not None
            and container.state in _CLOSED
        }
        ids = np.fromiter(needed, np.int64, len(needed))
        data_counts = np.fromiter(needed.values(), np.int64, len(needed))
        owner, rows = state.replicas.owned(ids)
        is_reported = data_counts <= self._indexes(owner, rows, self._seen, len(ids))
        if not self._is_cold:  # nothing was known of other containers before the start
            before = self._indexes(owner, rows, self._seen | self._online, len(ids))
            is_reported = is_reported[data_counts <= before]
        return ReportedCount(int(np.count_nonzero(is_reported)), len(is_reported))

    def _indexes(
        self, owner: NDArray[np.int64], rows: Rows, node_ids: Collection[str], count: int
    ) -> NDArray[np.int64]:
        """Return, for each container, how many different replica indexes these datanodes can serve.

        Only readable replicas count.
        """
        numbers, places = np.unique(rows["datanode"], return_inverse=True)
        is_one = np.array([w in node_ids for w in self._state.replicas.words(numbers.tolist())])
        is_good = ~np.isin(rows["state"], _UNREADABLE) & (rows["error"] == NO_WORD)
        if len(rows):
            is_good &= is_one[places]
        pairs = np.unique(np.stack((owner[is_good], rows["replica_index"][is_good])), axis=1)
        return np.bincount(pairs[0].astype(np.int64), minlength=count)


def _to_recover(restored: RestoreRecord) -> str:
    """Return the reason why a restored state must be recovered, with the time of its backup."""
    if not restored.taken_at_ms:
        return (
            "datanodes have seen a later state than this one: suture scm recover brings back what "
            "was stored in it"
        )
    taken = datetime.fromtimestamp(restored.taken_at_ms / 1000, UTC).isoformat(timespec="seconds")
    return f"this is a backup of {taken}: suture scm recover brings back what was stored since"
