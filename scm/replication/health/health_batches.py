"""Converts the state to batches of containers as columns, the input of `health.judge`.

A `ContainerBatch` contains some containers with all facts about them: the rows of the replica table
unchanged, the containers, the pending commands and the holds.

Spark creates the same batch from a snapshot of the same moment
(`spark_verify.tasks.judge_batches`). `suture-verify` checks for every container that both batches
result in the same health.
"""

from collections.abc import Callable, Collection, Iterator, Sequence, Sized
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from health.batch import NO_BCSID, ContainerBatch, Containers, Nodes, Ops, Replicas
from health.rules import Rules
from health.segmented_rows import Bools, Ints, Segments
from health.words import (
    CONTAINER_STATES,
    NODE_HEALTHS,
    OPS,
    REPLICA_STATES,
    SERVICE_OF,
    UNHEALTHY,
    UNKNOWN,
    NodeHealth,
    ReplicationType,
    SharedState,
)
from merkle.replica import ReplicaState
from scm.cluster.decision_context import ControlComponent
from scm.state import entities
from scm.state.database import StateDatabase
from scm.state.entities import Container, ContainerState, NodeHealthState, OpState, PendingCommand
from scm.state.replicas.arena import picked
from suture.wire.mapping.replica_columns import CONTRADICTORY, EMPTY, HAS_TREE

OP_WORDS: Final = {
    entities.CommandKind.CLOSE: "CLOSE",
    entities.CommandKind.DELETE: "DELETE",
    entities.CommandKind.RECONCILE: "RECONCILE",
    entities.CommandKind.REPLICATE: "ADD",
    entities.CommandKind.RECONSTRUCT: "ADD",
}
"""The words that `health/` uses for the kinds of pending commands.

Commands of other kinds do not concern a replica.
"""

_STATES: Final = {word: code for code, word in enumerate(CONTAINER_STATES)}
_REPLICA_STATES: Final = np.array([REPLICA_STATES.index(state) for state in ReplicaState])
_TOLD: Final[Callable[[Container], tuple[Any, ...]]] = attrgetter(
    "replication_factor", "sequence_id", "committed_count", "committed_bytes", "state"
)
_NOTHING_TOLD: Final[tuple[tuple[Any, ...], ...]] = ((),) * 5  # for an empty selection
_NOBODY: Final = Container(0, ContainerState.CLOSED, 0, 0, 0, ())  # if only replicas name it


def op_rows(pending: PendingCommand, state: StateDatabase) -> Iterator[tuple[str, str, int]]:
    """Yield one row for each replica that a pending command concerns.

    A row has a word of `health.words.OPS`, a datanode id, and a replica index. If a report already
    shows the effect on a replica, its row is left out. A reconstruction concerns several replicas.
    A copy has the replica index of its source. A copy to a datanode that is going to leave is left
    out.
    """
    word = OP_WORDS.get(pending.kind)
    if word is None:
        return
    source = state.replicas.get((pending.container_id, pending.datanode_id))
    alone = (0 if source is None else source.replica_index, pending.subject_id)
    for index, datanode_id in pending.shards or (alone,):
        held = state.replicas.get((pending.container_id, datanode_id))
        if word == "ADD":
            node = state.nodes.get(datanode_id)
            is_arrived = held is not None and held.state is not ReplicaState.RECOVERING
            is_open = not is_arrived and (node is None or node.op_state is OpState.IN_SERVICE)
        else:
            is_open = word != "DELETE" or held is not None
        if is_open:
            yield word, datanode_id, index


class HealthBatchBuilder(ControlComponent):
    """Creates batches of containers as columns from the state, as input of `health.judge`.

    Callers must hold the control plane's lock.
    """

    def rules(self) -> Rules:
        """Return the current parameters of the health rules.

        They are the number of racks, and the minimum numbers of replicas if datanodes are in
        maintenance or leave.
        """
        return Rules(
            maintenance_min=self._options.maintenance_replica_min,
            leaving_min=self._options.decommission_replica_min,
            rack_count=max(1, self._nodes.rack_count()),
        )

    def of(
        self, container_ids: Collection[int], *, without: Collection[int] = ()
    ) -> ContainerBatch:
        """Return a batch of these containers with their replicas and their pending commands.

        The containers are sorted by id. Pending commands whose ids are in `without` are left out.
        """
        ids = sorted(set(container_ids))
        owner, held = self._state.replicas.owned(ids)
        ops = self._ops(ids, without)
        words, which = np.unique(held["datanode"], return_inverse=True)
        holders = self._state.replicas.words(words.tolist())
        known = {name for _, _, name, _ in ops if self._state.nodes.get(name) is not None}
        names = sorted({*holders, *known})
        place = {name: i for i, name in enumerate(names)}
        node = np.array([place[name] for name in holders], dtype=np.int64)[which]
        order = np.lexsort((node, held["replica_index"], owner))
        replicas, origins = self._replicas(
            ids, owner[order], picked(held, order), node[order], names
        )
        return ContainerBatch(
            containers=self._containers(ids, owner, held),
            replicas=replicas,
            ops=Ops(
                container=_longs(op[0] for op in ops),
                kind=_longs(OPS.index(op[1]) for op in ops),
                node=_longs(place.get(op[2], UNKNOWN) for op in ops),
                index=_longs(op[3] for op in ops),
            ),
            nodes=self._node_columns(names),
            origins=origins,
        )

    def _ops(self, ids: Sequence[int], without: Collection[int]) -> list[tuple[int, str, str, int]]:
        """Return one row for each replica that a pending command concerns.

        A row has the position of the container in `ids`, a word of `health.words.OPS`, a datanode
        id, and a replica index.
        """
        commands, concerned = self._state.commands, self._state.commands.by_container
        return [
            (i, *row)
            for i, number in enumerate(ids)
            if number in concerned
            for pending in commands.of_container(number)
            if pending.command_id not in without
            for row in op_rows(pending, self._state)
        ]

    def _node_columns(self, names: Sequence[str]) -> Nodes:
        known = [self._state.nodes.get(name) for name in names]
        states = [OpState.IN_SERVICE if n is None else n.op_state for n in known]
        racks = {rack: i for i, rack in enumerate(sorted({n.rack for n in known if n}))}
        return Nodes(
            names=tuple(names),
            rack=_longs(-1 if n is None else racks[n.rack] for n in known),
            health=_longs(
                NodeHealth.DEAD if n is None else NODE_HEALTHS.index(self._nodes.health(name))
                for name, n in zip(names, known, strict=True)
            ),
            service=_longs(SERVICE_OF[state] for state in states),
            is_returning=np.array([s is OpState.IN_MAINTENANCE for s in states], dtype=np.bool_),
            is_confirmed=np.array(list(map(self._cases.is_confirmed, names)), dtype=np.bool_),
        )

    def _replicas(
        self, ids: Sequence[int], owner: Ints, held: NDArray[Any], node: Ints, names: Sequence[str]
    ) -> tuple[Replicas, tuple[str, ...]]:
        flags = held["flags"]
        has_tree = flags & HAS_TREE != 0
        is_loaded = self._is_word("", held["error"])
        own = self._is_word("", held["origin"])
        words, origin = np.unique(
            np.where(own, held["datanode"], held["origin"]), return_inverse=True
        )
        replicas = Replicas(
            container=owner,
            node=node,
            index=held["replica_index"].astype(np.int64),
            # A replica that could not be loaded is present and damaged, whatever its state was.
            state=np.where(is_loaded, _REPLICA_STATES[held["state"]], UNHEALTHY),
            is_loaded=is_loaded,
            origin=origin.astype(np.int64),
            bcsid=held["bcsid"].astype(np.int64),
            used_bytes=held["used_bytes"].astype(np.int64),
            is_empty=flags & EMPTY != 0,
            algorithm=np.where(has_tree, held["algorithm"].astype(np.int64), UNKNOWN),
            root=held["root"].astype(np.int64),
            has_root=has_tree,
            settled=np.zeros(len(owner), dtype=np.int64),  # Suture's trees have one root
            has_settled=np.zeros(len(owner), dtype=np.bool_),
            tombstones=held["tombstones_checksum"].astype(np.int64),
            has_tombstones=has_tree,
            findings=held["finding_count"].astype(np.int64),
            is_contradictory=flags & CONTRADICTORY != 0,
            block_count=held["block_count"].astype(np.int64),
            tree_block_count=held["tree_block_count"].astype(np.int64),
            tombstone_count=np.where(has_tree, held["tombstone_count"].astype(np.int64), 0),
            is_barred=self._barred(ids, owner, node, names),
            is_hopeful=self._hopeful(ids, owner, held, node, names),
        )
        return replicas, tuple(self._state.replicas.words(words.tolist()))

    def _barred(self, ids: Sequence[int], owner: Ints, node: Ints, names: Sequence[str]) -> Bools:
        """Return one boolean per replica: True if no command may be sent for it.

        That is the case if the replica is excluded, or if its datanode gets no commands about
        replicas.
        """
        strange = np.array([not self._nodes.takes_commands(name) for name in names], dtype=np.bool_)
        barred = strange[node]
        if len(self._state.holds):
            for row in np.flatnonzero(np.isin(owner, self._held_places(ids))).tolist():
                key = (ids[owner[row]], names[node[row]])
                barred[row] |= self._state.holds.get(key) is not None
        return barred

    def _held_places(self, ids: Sequence[int]) -> list[int]:
        return [i for i, number in enumerate(ids) if self._state.holds.of(number)]

    def _hopeful(
        self,
        ids: Sequence[int],
        owner: Ints,
        held: NDArray[Any],
        node: Ints,
        names: Sequence[str],
    ) -> Bools:
        """Return one boolean per replica: True if a repair may still heal the unhealthy replica."""
        found = np.zeros(len(owner), dtype=np.bool_)
        state = _REPLICA_STATES[held["state"]]
        doubtful = np.unique(owner[(state == UNHEALTHY) | (state == SharedState.QUASI_CLOSED)])
        for place in {*doubtful.tolist(), *self._cases.places_in_grace(ids)}:
            healable_holders = self._cases.healable_holders(ids[place])
            first, end = np.searchsorted(owner, (place, place + 1)).tolist()
            for row in range(first, end if healable_holders else first):
                found[row] = names[node[row]] in healable_holders
        return found

    def _is_word(self, word: str, numbers: NDArray[Any]) -> Bools:
        distinct, which = np.unique(numbers, return_inverse=True)
        words = self._state.replicas.words(distinct.tolist())
        return np.array([one == word for one in words], dtype=np.bool_)[which]

    def _containers(self, ids: Sequence[int], owner: Ints, held: NDArray[Any]) -> Containers:
        rows_of = Segments.of(owner, len(ids))
        # Ignore the numbers of an unhealthy replica, because its metadata may be damaged.
        able = _REPLICA_STATES[held["state"]] != UNHEALTHY
        blocks = rows_of.highest(held["block_count"].astype(np.int64), -1, able)
        used = rows_of.highest(held["used_bytes"].astype(np.int64), -1, able)
        containers, keys = self._state.containers, self._state.keys
        found = [containers.get(number) for number in ids]
        known = [_NOBODY if container is None else container for container in found]
        is_known = np.array([container is not None for container in found], dtype=np.bool_)
        told = tuple(zip(*map(_TOLD, known), strict=True)) or _NOTHING_TOLD
        factors, sequence_ids, counts, sizes, words = told
        factor = _longs(factors)
        data = np.zeros(len(ids), dtype=np.int64)
        for i in [i for i, container in enumerate(known) if container.scheme]:
            data[i] = known[i].data_count
        is_ec = data > 0
        has_pipeline = np.zeros(len(ids), dtype=np.bool_)
        for i in [i for i, word in enumerate(words) if word is ContainerState.OPEN]:
            has_pipeline[i] = self._has_pipeline(known[i])
        return Containers(
            container_id=np.array(ids, dtype=np.int64),
            kind=np.where(
                is_known, np.where(is_ec, ReplicationType.EC, ReplicationType.RATIS), UNKNOWN
            ),
            factor=factor,
            data=data,
            parity=np.where(is_ec, factor - data, 0),
            state=np.where(is_known, _longs([_STATES[word] for word in words]), UNKNOWN),
            sequence_id=_longs(sequence_ids),
            acknowledged_id=_longs([n or NO_BCSID for n in keys.last_bcsids_in(ids)]),
            key_count=np.where(blocks < 0, _longs(counts), blocks),
            used_bytes=np.where(used < 0, _longs(sizes), used),
            has_pipeline=has_pipeline,
            is_suppressed=self._those(ids, self._state.holds.is_suppressed, self._state.holds),
            owes_deletes=self._those(
                ids, self._cases.has_unacknowledged_deletes, self._state.transactions
            )
            & is_known,
            is_known=is_known,
        )

    @staticmethod
    def _those(ids: Sequence[int], is_so: Callable[[int], bool], rows: Sized) -> Bools:
        """Return one boolean per container: the result of `is_so` for its id.

        If the table `rows` is empty, all values are False and `is_so` is not called.
        """
        if not len(rows):
            return np.zeros(len(ids), dtype=np.bool_)
        return np.array([is_so(number) for number in ids], dtype=np.bool_)

    def _has_pipeline(self, container: Container) -> bool:
        return container.state is ContainerState.OPEN and all(
            self._nodes.health(node) is NodeHealthState.HEALTHY for node in container.pipeline
        )


def _longs(values: Any) -> Ints:
    return np.fromiter(values, dtype=np.int64)
