"""Counts of healthy and unhealthy containers, updated when containers change.

After a change of a container or of one of its replicas, the flags of the container are recomputed.
Each step recomputes a limited number of containers, so the lock is held equally long in a cluster
of any size. A replica on a DEAD datanode does not count as present, unless the datanode is in
maintenance.
"""

from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from enum import IntFlag
from functools import reduce
from itertools import islice
from operator import or_
from typing import Final

import numpy as np
from numpy.typing import NDArray

from merkle.replica import TREE_STATES, ReplicaState
from scm.api.views import comparison
from scm.cluster.nodes import NodeManager
from scm.state.container_queues import distinct
from scm.state.database import StateDatabase
from scm.state.entities import Container, ContainerState, Replica, data_count_of
from scm.state.records import NO_COUNT
from scm.state.replicas.arena import Rows, picked
from scm.state.replicas.replica_table import NO_WORD, ReplicaTable
from scm.state.tables.container_table import ContainerTable
from scm.state.tables.key_table import KeyTable
from suture.wire.mapping.replica_columns import CONTRADICTORY, HAS_TREE

COUNTED_MAX: Final = 4_000  # per step, some 10 ms: after a restart all containers are uncounted
REPLICAS_WANTED: Final = 3  # assumed for a container that this control plane did not make

WHOLE: Final = frozenset(ReplicaState) - {
    ReplicaState.UNHEALTHY,
    ReplicaState.RECOVERING,
    ReplicaState.DELETED,
}
_WRITTEN: Final = frozenset({ContainerState.OPEN, ContainerState.CLOSING})
_GONE: Final = frozenset({ContainerState.DELETING, ContainerState.DELETED})
_HAS_TREE_STATE: Final = np.array([state in TREE_STATES for state in ReplicaState])
_IS_WHOLE_STATE: Final = np.array([state in WHOLE for state in ReplicaState])
"""Readable replica states: one boolean per state, indexed by the number of the state."""
_UNHEALTHY: Final = tuple(ReplicaState).index(ReplicaState.UNHEALTHY)


class Flag(IntFlag):
    """Conditions of a container, as bits.

    A closed container that this control plane made and that has no flag is healthy.
    """

    OPEN = 1  # open or closing: nothing can be compared yet
    GONE = 2  # deleted, or being deleted
    UNHEALTHY = 4
    DIFFER = 8
    FEW_REPLICAS = 16
    UNKNOWN = 32  # not compared: a replica has no tree yet
    FOREIGN = 64  # reported by datanodes, but not made by this control plane
    LOST = 128  # no whole replica is known; or too few shards to read
    CONTRADICT = 256  # replicas contradict each other, each with intact rows
    STRAY = 512  # foreign, and no operator forgot it: this state may be an older one
    LACKING = 1024  # no replica can have all blocks that keys need


_NO_FLAG: Final = Flag(0)
NOT_SAID: Final = -1
NOT_KNOWN: Final = 2**62  # more than any count
TO_DO: Final = (
    Flag.UNHEALTHY
    | Flag.DIFFER
    | Flag.FEW_REPLICAS
    | Flag.UNKNOWN
    | Flag.LOST
    | Flag.CONTRADICT
    | Flag.STRAY
    | Flag.LACKING
)

NAMED: Final = (
    Flag.LOST,
    Flag.LACKING,
    Flag.CONTRADICT,
    Flag.UNHEALTHY,
    Flag.DIFFER,
    Flag.FEW_REPLICAS,
)
"""Flags for which a web page lists the containers, most serious first."""
ANY_NAMED: Final = reduce(or_, NAMED)


@dataclass(frozen=True, slots=True)
class HealthCounts:
    """Number of containers by condition. Deleted containers are not counted."""

    all: int
    open: int
    whole: int
    faulty: int
    unhealthy: int
    differ: int
    few_replicas: int
    unknown: int
    lost: int
    contradict: int
    stray: int
    missing_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNeeds:
    """The number of blocks, and the last commit, that keys need in one container."""

    block_count: int = 0
    bcsid: int = 0  # bcsid of the last needed commit; 0 = none, or not known
    promised_count: int = NOT_KNOWN  # blocks that were ever allocated in the container


NOTHING_NEEDED: Final = KeyNeeds()


@dataclass(frozen=True, slots=True)
class Needs:
    """Reads the blocks and commits that keys need, for one or many containers."""

    keys: KeyTable
    containers: ContainerTable
    has_all_commits_of: Callable[[int], bool]

    def of(self, container_id: int) -> KeyNeeds:
        """Return the blocks and commits that keys need in one container."""
        [promised_count] = self.promised_in(np.array([container_id])).tolist()
        return KeyNeeds(
            block_count=self.keys.blocks_in(container_id),
            bcsid=self.keys.needed_bcsid_in(container_id),
            promised_count=promised_count,
        )

    def columns(self, container_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Return two arrays with one value per container.

        The first array has the number of blocks that keys need. The second array has the last
        commit that any present or earlier key needed.
        """
        ids = container_ids.tolist()
        counts, bcsids = self.keys.blocks_in_each(ids), self.keys.last_bcsids_in(ids)
        return np.array(counts, np.int64), np.array(bcsids, np.int64)

    def promised_in(self, container_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of blocks that were ever allocated in each container.

        The value is NOT_KNOWN if the number is unknown, for instance after a recovery.
        """
        ids = container_ids.tolist()
        counts = self.containers.promised_counts(ids)
        return np.array(
            [
                counted if counted and self.has_all_commits_of(number) else NOT_KNOWN
                for number, counted in zip(ids, counts, strict=True)
            ],
            np.int64,
        )


def flags_of(
    container: Container | None, replicas: Sequence[Replica], needed: KeyNeeds = NOTHING_NEEDED
) -> Flag:
    """Return the flags (conditions) of a container that has these replicas.

    `container` is None if this control plane did not make the container.
    """
    flags = Flag(0)
    if container is None:
        flags |= Flag.FOREIGN
    elif container.state in _WRITTEN:
        return Flag.OPEN
    elif container.state in _GONE:
        return Flag.GONE
    is_coded = container is not None and bool(container.scheme)
    there = len({r.replica_index for r in replicas}) if is_coded else len(replicas)
    wanted = 0 if container is None else container.replication_factor
    if there < (wanted or REPLICAS_WANTED):
        flags |= Flag.FEW_REPLICAS
    if any(r.state is ReplicaState.UNHEALTHY or r.finding_count or r.load_error for r in replicas):
        flags |= Flag.UNHEALTHY
    if any(replica.is_contradictory for replica in replicas):
        flags |= Flag.CONTRADICT
    whole = {r.replica_index if is_coded else 0 for r in replicas if is_whole(r)}
    if len(whole) < (data_count_of(container.scheme) if container is not None else 1):
        flags |= Flag.LOST
    if container is not None and has_missing_blocks(replicas, needed):
        flags |= Flag.LACKING
    match comparison(container, replicas):
        case "differ":
            flags |= Flag.DIFFER
        case "unknown":
            flags |= Flag.UNKNOWN
    return flags


def has_missing_blocks(replicas: Sequence[Replica], needed: KeyNeeds) -> bool:
    """Return True if no replica can have all blocks that keys need.

    A replica lacks needed blocks in three cases:

    - It has fewer blocks than keys need.
    - Its commit id is below the last needed commit.
    - Its deleted blocks and the needed blocks together are more than were ever allocated.

    Return False while a replica has no tree, because it may still be open.
    """
    loaded = [replica for replica in replicas if not replica.load_error]
    return bool(loaded) and all(
        replica.tree is not None
        and replica.state in TREE_STATES
        and (
            replica.block_count < needed.block_count
            or replica.bcsid < needed.bcsid
            or replica.tree.tombstone_count + needed.block_count > needed.promised_count
        )
        for replica in loaded
    )


def is_whole(replica: Replica) -> bool:
    """Return True if a replica is readable and its datanode reports no fault of it."""
    is_readable = replica.state in WHOLE and not replica.load_error
    return is_readable and not replica.finding_count


class HealthTotals:
    """The flags of each container, and the number of containers with each combination of flags.

    Callers must hold the control plane's lock.
    """

    def __init__(self, state: StateDatabase, nodes: NodeManager) -> None:
        self._state = state
        self._nodes = nodes
        self._needs = Needs(state.keys, state.containers, state.has_all_commits_of)
        self._backlog = distinct(state.replicas.container_ids(), state.containers.ids())
        self._backlog_at = 0  # containers before this position were counted
        self._due: set[int] = set()
        for table in (state.containers, state.replicas, state.keys):
            table.touched.clear()  # the load from disk marked them
        self._flags: dict[int, Flag] = {}  # only of containers with a flag: most have none
        self._counts: Counter[Flag] = Counter()
        self._having: dict[Flag, dict[int, None]] = {flag: {} for flag in NAMED}

    def recount(self, container_ids: NDArray[np.int64]) -> None:
        """Mark these containers as outdated, because one of their datanodes died or came back."""
        self._due.update(container_ids.tolist())

    def recompute_some(self) -> bool:
        """Recompute the flags of some outdated containers.

        Return True if no container is outdated any more.
        """
        for table in (self._state.containers, self._state.replicas, self._state.keys):
            self._due |= table.touched
            table.touched.clear()
        if len(self._due) <= COUNTED_MAX:
            chosen, self._due = self._due, set()
        else:
            chosen = {self._due.pop() for _ in range(COUNTED_MAX)}
        stop = self._backlog_at + COUNTED_MAX - len(chosen)
        changed = np.fromiter(chosen, np.int64, len(chosen))
        ids = np.concatenate((changed, self._backlog[self._backlog_at : stop]))
        self._backlog_at = min(stop, len(self._backlog))
        if len(ids):
            self._note_all(ids)
        return not self.due_count

    @property
    def due_count(self) -> int:
        """Return the number of containers with outdated flags.

        They have changed, or their flags have not been computed since the start.
        """
        return (
            len(self._due)
            + len(self._backlog)
            - self._backlog_at
            + len(self._state.containers.touched)
            + len(self._state.replicas.touched)
            + len(self._state.keys.touched)
        )

    def named(self, flag: Flag, count: int) -> list[int]:
        """Return up to `count` ids of containers with this flag, the longest flagged first.

        `flag` must be one of `NAMED`.
        """
        return list(islice(self._having[flag], count))

    def count_of(self, flag: Flag) -> int:
        """Return the number of containers with this flag. `flag` must be one of `NAMED`."""
        return len(self._having[flag])

    def counts(self) -> HealthCounts:
        """Return the number of containers by condition.

        A container with outdated flags (`due_count`) is counted by its earlier flags. If it has
        none yet, it is counted as healthy.
        """

        def having(flags: Flag) -> int:
            return sum(count for known, count in self._counts.items() if known & flags)

        foreign = having(Flag.FOREIGN)
        shown = len(self._state.containers) - having(Flag.GONE) + foreign
        return HealthCounts(
            all=shown,
            open=having(Flag.OPEN),
            whole=shown - having(Flag.OPEN) - having(TO_DO),
            faulty=having(TO_DO),
            unhealthy=having(Flag.UNHEALTHY),
            differ=having(Flag.DIFFER),
            few_replicas=having(Flag.FEW_REPLICAS),
            unknown=having(Flag.UNKNOWN),
            lost=having(Flag.LOST),
            contradict=having(Flag.CONTRADICT),
            stray=having(Flag.STRAY),
            missing_blocks=having(Flag.LACKING),
        )

    def _note_all(self, container_ids: NDArray[np.int64]) -> None:
        """Recompute the flags of these containers.

        Most flags are computed with column operations. The others are computed container by
        container.
        """
        containers = self._state.containers
        counts = containers.wanted.of(container_ids)
        gone = frozenset(filter(self._nodes.is_gone, self._nodes.dead))
        flags = flags_of_all(self._state.replicas, container_ids, counts, gone, self._needs)
        for container_id in container_ids[flags < 0].tolist():
            self._record_flags(container_id, containers.get(container_id), gone)
        is_plain = flags == 0
        for container_id in self._flags.keys() & set(container_ids[is_plain].tolist()):
            self._set(container_id, _NO_FLAG)
        is_odd = flags > 0
        for container_id, flag in zip(
            container_ids[is_odd].tolist(), flags[is_odd].tolist(), strict=True
        ):
            self._set(container_id, Flag(flag))

    def _record_flags(self, container_id: int, container: Container | None, gone: Set[str]) -> None:
        replicas = self._state.replicas.of(container_id)
        is_there = container is not None or bool(replicas)
        present = [replica for replica in replicas if replica.datanode_id not in gone]
        flags = flags_of(container, present, self._needs.of(container_id)) if is_there else Flag(0)
        if flags & Flag.FOREIGN and self._state.forgotten.get(container_id) is None:
            flags |= Flag.STRAY
        self._set(container_id, flags)

    def _set(self, container_id: int, flags: Flag) -> None:
        before = self._flags.pop(container_id, Flag(0))
        if before:
            self._counts[before] -= 1
        if flags:
            self._flags[container_id] = flags
            self._counts[flags] += 1
        if (before | flags) & ANY_NAMED:
            for flag, having in self._having.items():
                if flags & flag:
                    having.setdefault(container_id)
                else:
                    having.pop(container_id, None)


def flags_of_all(
    table: ReplicaTable,
    container_ids: NDArray[np.int64],
    replica_counts: NDArray[np.int64],
    gone: Set[str] = frozenset(),
    needs: Needs | None = None,
) -> NDArray[np.int64]:
    """Return the flags of many containers, computed from the columns of their replicas.

    The containers must be closed, and their pipelines empty. `replica_counts` are the required
    replica counts from `WantedCounts.of`. Replicas on datanodes in `gone` do not count as present.
    `needs` are the blocks and commits that keys need.

    The result is NOT_SAID for a container whose flags must be computed with `flags_of`. Such a
    container has no required replica count, may lack needed blocks, or has trees of several
    checksum algorithms.
    """
    count = len(container_ids)
    wanted = np.where(replica_counts == 0, REPLICAS_WANTED, replica_counts)
    owner, rows = table.owned(container_ids)
    if gone:
        is_present = ~np.isin(rows["datanode"], table.numbers(gone))
        owner, rows = owner[is_present], picked(rows, is_present)
    has_error = rows["error"] != NO_WORD
    number = rows["state"]
    has_tree = _HAS_TREE_STATE[number] & (rows["flags"] & HAS_TREE != 0)

    def of(which: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(owner[which], minlength=count)

    there = np.bincount(owner, minlength=count)
    is_damaged = (number == _UNHEALTHY) | (rows["finding_count"] > 0) | has_error
    trees = of(has_tree)
    whole = of(_IS_WHOLE_STATE[number] & ~has_error & (rows["finding_count"] == 0))
    first = np.zeros(count, np.int64)  # position of each container's first tree
    places = np.flatnonzero(has_tree)
    first[owner[places][::-1]] = places[::-1]
    beside = first[owner]

    def unlike(column: str) -> NDArray[np.int64]:
        return of(has_tree & (rows[column] != rows[column][beside]))

    is_mixed = unlike("algorithm") > 0
    differ = (unlike("root") > 0) | (unlike("tombstones_checksum") > 0)
    flags = np.zeros(count, np.int64)
    for flag, is_so in (
        (Flag.FEW_REPLICAS, there < wanted),
        (Flag.UNHEALTHY, of(is_damaged) > 0),
        (Flag.CONTRADICT, of(rows["flags"] & CONTRADICTORY != 0) > 0),
        (Flag.LOST, whole == 0),
        (Flag.DIFFER, differ),
        (Flag.UNKNOWN, ~differ & ((trees == 0) | (trees != there))),
    ):
        flags[is_so] |= flag
    flags[is_mixed | (replica_counts == NO_COUNT)] = NOT_SAID
    if needs is not None:
        is_sound = has_tree & ~has_error
        flags[_may_lack(container_ids, owner[is_sound], picked(rows, is_sound), needs)] = NOT_SAID
    return flags


def _may_lack(
    container_ids: NDArray[np.int64], owner: NDArray[np.int64], rows: Rows, needs: Needs
) -> NDArray[np.bool_]:
    """Return one boolean per container: True if the caller must call `has_missing_blocks` for it.

    `rows` are the replicas that have a tree. `owner` has the position of each replica's container.
    """
    block_counts, bcsids = needs.columns(container_ids)
    promised = np.full(len(container_ids), NOT_KNOWN)
    some = np.unique(owner[rows["tombstone_count"] > 0])
    promised[some] = needs.promised_in(container_ids[some])

    def of_replicas(column: str) -> NDArray[np.int64]:
        found: NDArray[np.int64] = rows[column].astype(np.int64)
        return found

    lacks = of_replicas("block_count") < block_counts[owner]
    lacks |= of_replicas("bcsid") < bcsids[owner]
    lacks |= of_replicas("tombstone_count") + block_counts[owner] > promised[owner]
    has_all = np.bincount(owner[~lacks], minlength=len(container_ids)) > 0
    is_there = np.bincount(owner, minlength=len(container_ids)) > 0
    return np.logical_and(is_there, ~has_all)
