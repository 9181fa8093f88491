"""How many containers are whole, and what is wrong with the others: kept, not counted when asked.

Each container's flags are worked out again after a change of it or of one of its replicas, some in
each turn, so that an answer takes as long with a million containers as with ten.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

from merkle.replica import ReplicaState
from scm.edge.views import comparison
from scm.state.database import State
from scm.state.facts import Container, ContainerState, Replica, data_count_of

COUNTED_MAX: Final = 1_000  # in one turn, some 10 ms: after a restart all containers are to count
REPLICAS_WANTED: Final = 3  # of a container that nobody here made

WHOLE: Final = frozenset(ReplicaState) - {
    ReplicaState.UNHEALTHY,
    ReplicaState.RECOVERING,
    ReplicaState.DELETED,
}
_WRITTEN: Final = frozenset({ContainerState.OPEN, ContainerState.CLOSING})
_GONE: Final = frozenset({ContainerState.DELETING, ContainerState.DELETED})


class Flag(IntFlag):
    """What may be said of a container; a closed one of ours without any is whole."""

    OPEN = 1  # or closing: there is nothing to compare yet
    GONE = 2  # deleted, or being deleted
    UNHEALTHY = 4
    DIFFER = 8
    FEW_REPLICAS = 16
    UNKNOWN = 32  # not compared: a replica has no tree yet
    FOREIGN = 64  # reported by datanodes, and never made here
    LOST = 128  # no whole replica is known; of shards, too few to read from
    CONTRADICT = 256  # replicas contradict each other, each by rows that are intact


TO_DO: Final = (
    Flag.UNHEALTHY | Flag.DIFFER | Flag.FEW_REPLICAS | Flag.UNKNOWN | Flag.LOST | Flag.CONTRADICT
)


@dataclass(frozen=True, slots=True)
class Counts:
    """Containers by what an operator would do about them; deleted ones count nowhere."""

    all: int
    open: int
    whole: int
    to_do: int
    unhealthy: int
    differ: int
    few_replicas: int
    unknown: int
    lost: int
    contradict: int


def flags_of(container: Container | None, replicas: Sequence[Replica]) -> Flag:
    """Return what is to be said of a container and its replicas."""
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
    if any(replica.state is ReplicaState.UNHEALTHY for replica in replicas):
        flags |= Flag.UNHEALTHY
    if any(replica.is_contradictory for replica in replicas):
        flags |= Flag.CONTRADICT
    whole = {r.replica_index if is_coded else 0 for r in replicas if is_whole(r)}
    if len(whole) < (data_count_of(container.scheme) if container is not None else 1):
        flags |= Flag.LOST
    match comparison(container, replicas):
        case "differ":
            flags |= Flag.DIFFER
        case "unknown":
            flags |= Flag.UNKNOWN
    return flags


def is_whole(replica: Replica) -> bool:
    """Return whether a replica can be read from its first byte to its last, as far as is known."""
    is_readable = replica.state in WHOLE and not replica.load_error
    return is_readable and not replica.finding_count


class Totals:
    """Flags by container, and how often each combination is. Callers hold the control's lock."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._due = set(state.replicas.container_ids().tolist())
        self._due.update(container.container_id for container in state.containers.values())
        for table in (state.containers, state.replicas):
            table.touched.clear()  # reading them back
        self._flags: dict[int, Flag] = {}  # of those that have any: most have none
        self._counts: Counter[Flag] = Counter()

    def turn(self) -> bool:
        """Work out some of what changed since; return whether nothing is left."""
        for table in (self._state.containers, self._state.replicas):
            self._due |= table.touched
            table.touched.clear()
        for _ in range(min(COUNTED_MAX, len(self._due))):
            self._note(self._due.pop())
        return not self._due

    def counts(self) -> Counts:
        """Return the counts as of the last turn that left nothing."""

        def having(flags: Flag) -> int:
            return sum(count for known, count in self._counts.items() if known & flags)

        foreign = having(Flag.FOREIGN)
        shown = len(self._state.containers) - having(Flag.GONE) + foreign
        return Counts(
            all=shown,
            open=having(Flag.OPEN),
            whole=shown - having(Flag.OPEN) - having(TO_DO),
            to_do=having(TO_DO),
            unhealthy=having(Flag.UNHEALTHY),
            differ=having(Flag.DIFFER),
            few_replicas=having(Flag.FEW_REPLICAS),
            unknown=having(Flag.UNKNOWN),
            lost=having(Flag.LOST),
            contradict=having(Flag.CONTRADICT),
        )

    def _note(self, container_id: int) -> None:
        container = self._state.containers.get(container_id)
        replicas = self._state.replicas.of(container_id)
        before = self._flags.pop(container_id, None)
        if before is not None:
            self._counts[before] -= 1
        if container is None and not replicas:
            return
        flags = flags_of(container, replicas)
        if flags:
            self._flags[container_id] = flags
            self._counts[flags] += 1
