"""A batch: containers with their replicas, pending operations and nodes, as columns.

    table       rows in ascending order of     indexes in other tables
    containers  id
    replicas    container, index, node         `container` in containers, `node` in nodes
    ops         container                      `container` in containers, `node` in nodes
    nodes       name

A batch may have a single container. The caller must sort the rows of each table. The function
`violations` returns the containers with invalid rows.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from health.segmented_rows import Bools, Groups, Ints, Segments, is_among
from health.words import (
    COUNTED_STATES,
    NODE_HEALTHS,
    REACHABLE_HEALTHS,
    REPLICA_STATES,
    TREE_STATES,
    UNHEALTHY,
    NodeHealth,
    PendingOpKind,
    ReplicationType,
    ServiceState,
    SharedState,
)

NO_BCSID = -1
"""Placeholder for an unknown commit id; lower than every known commit id."""

_NODE_OF_NO_OP, _NODE_OF_NO_REPLICA = -1, -2


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """The containers of a batch, as columns with one value per container."""

    container_id: Ints
    kind: Ints
    """Code of `words.ReplicationType`. If only datanodes report a container, and the control plane
    does not know it, this code and all other codes of the container are UNKNOWN."""
    factor: Ints
    """Required number of replicas; for EC the number of data and parity shards."""
    data: Ints
    parity: Ints
    state: Ints
    sequence_id: Ints
    """Commit id of the container."""
    acknowledged_id: Ints
    """Last commit id acknowledged to a client; NO_BCSID if unknown, or if there is none."""
    key_count: Ints
    used_bytes: Ints
    has_pipeline: Bools
    is_suppressed: Bools
    """True if an operator excluded the container from reports and plans."""
    owes_deletes: Bools
    """True if a datanode with a replica of the container has not yet acknowledged the delete of a
    block."""
    is_known: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The replicas that datanodes reported, as columns with one value per replica. `node` is
    UNKNOWN if the batch has no row for the replica's node."""

    container: Ints
    node: Ints
    index: Ints
    """EC index from 1; 0 for other containers."""
    state: Ints
    """State of the replica; UNHEALTHY also if the datanode could not load the replica."""
    is_loaded: Bools
    origin: Ints
    """The datanode that received the writes, as an index into `ContainerBatch.origins`."""
    bcsid: Ints
    """Last commit id; NO_BCSID if unknown."""
    used_bytes: Ints
    is_empty: Bools
    algorithm: Ints
    root: Ints
    has_root: Bools
    """True if root and algorithm are both known; otherwise neither is valid."""
    settled: Ints
    """The root computed from the checksums that were stored with the data, independent of the
    program that built the replica's tree. It is known only if a complete read found no damage and
    explained every difference between the tree and these checksums."""
    has_settled: Bools
    tombstones: Ints
    has_tombstones: Bools
    findings: Ints
    is_contradictory: Bools
    """True if the replica's datanode reports that intact rows of this replica and of a peer
    contradict each other."""
    block_count: Ints
    tree_block_count: Ints
    """Number of live blocks in the replica's tree. The tree may be older than the replica's
    rows."""
    tombstone_count: Ints
    """Number of tombstones in the replica's tree; 0 without a tree."""
    is_barred: Bools
    """True if plans must not use the replica, because an operator or repeated failures excluded the
    replica, or because the control plane sends its datanode no commands."""
    is_hopeful: Bools
    """True if the replica is damaged, but a repair in place may restore it. While this is True, the
    replica is not replaced by a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ops:
    """Pending operations, as columns with one value per operation. `node` is UNKNOWN if the batch
    has no row for the operation's node."""

    container: Ints
    kind: Ints
    node: Ints
    index: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The datanodes of a batch, as columns with one value per datanode, sorted by name."""

    names: tuple[str, ...]
    rack: Ints
    health: Ints
    service: Ints
    """Code of `words.ServiceState`."""
    is_returning: Bools
    """True if the node is in maintenance. Its replicas then do not count as lost while it is
    dead."""
    is_confirmed: Bools
    """True if the node has reported all its replicas since the control plane's start. Before this
    report, the replicas that the control plane knows of the node may no longer exist."""

    def among(self, names: Collection[str]) -> Bools:
        """Return, for each node, True if its name is in `names`."""
        return np.array([name in names for name in self.names], dtype=np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerBatch:
    """Containers with their replicas, pending operations and nodes, at one instant."""

    containers: Containers
    replicas: Replicas
    ops: Ops
    nodes: Nodes
    origins: tuple[str, ...] = ()
    """Ids of the origin datanodes. The values of `Replicas.origin` are indexes in this tuple."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """A batch with derived facts about its replicas and containers, which all rules use."""

    batch: ContainerBatch
    rows: Segments
    ops: Segments
    service: Ints
    rack: Ints
    is_reachable: Bools
    is_alive: Bools
    """The replica is on a node that is not dead."""
    is_gone: Bools
    """The replica is on a dead node that is not expected to return."""
    is_present: Bools
    """True if the replica counts towards the number of replicas of its container, because of its
    state, and because its node is not dead or is expected to return."""
    is_sick: Bools
    """The replica is present (`is_present`) and UNHEALTHY."""
    is_bad: Bools
    """The replica is `is_sick`, or it is QUASI_CLOSED and its commit id differs from that of its
    CLOSED container."""
    is_confirmed: Bools
    """The replica's node has reported all its replicas since the control plane's start."""
    is_tree: Bools
    """The replica is in a state that has a valid root."""
    is_countable: Bools
    """The replica can be compared now: it has a tree, and its node answers."""
    is_leaving: Bools
    """A pending delete will remove the replica."""
    is_stray_delete: Bools
    """Per op: True for a pending delete that matches no reported replica."""
    adds: Ints
    deletes: Ints
    """Number of pending deletes of each container. A delete of a replica for which `is_gone` is
    True is not counted."""
    stray_deletes: Ints
    present: Ints
    """Number of replicas of each container for which `is_present` is True."""
    countable: Ints
    """Number of replicas of each container for which `is_countable` is True."""
    is_ec: Bools
    """Per container: True if it is erasure-coded."""
    is_shard: Bools
    """Per replica: True if its container is erasure-coded."""
    is_judged: Bools
    """Per container: True if the control plane knows the container, and no operator has excluded it
    from plans."""

    def of_container(self, column: NDArray[Any]) -> NDArray[Any]:
        """Return, for each replica, the value that `column` has for the replica's container."""
        return column[self.rows.owner]

    def places(self, rows: Ints) -> Ints:
        """Return a rank for each replica in `rows`, to choose between equally good replicas.

        The rank is the CRC-32 of the container id and the datanode's name. Every program computes
        the same ranks, and therefore chooses the same replica (HDDS-4589).
        """
        ids = self.batch.containers.container_id[self.rows.owner[rows]].tolist()
        nodes, names = self.batch.replicas.node[rows].tolist(), self.batch.nodes.names
        texts = (f"{i}:{names[node]}".encode() for i, node in zip(ids, nodes, strict=True))
        return np.fromiter(map(crc32, texts), dtype=np.int64, count=len(rows))


def view(batch: ContainerBatch) -> BatchView:
    """Compute the derived facts of a batch, and return the batch together with them."""
    replicas, ops, nodes = batch.replicas, batch.ops, batch.nodes
    count = len(batch.containers.container_id)
    rows = Segments.of(replicas.container, count)
    health = _of_node(nodes.health, replicas.node, len(NODE_HEALTHS))
    is_alive = health != NodeHealth.DEAD
    is_gone = ~is_alive & ~_of_node(nodes.is_returning, replicas.node, 0).astype(np.bool_)
    state = replicas.state
    is_present = ~is_gone & _table(REPLICA_STATES, COUNTED_STATES)[state]
    is_reachable = _table((*NODE_HEALTHS, ""), REACHABLE_HEALTHS)[health]
    is_sick = is_present & (state == UNHEALTHY)
    containers = batch.containers
    is_stale = (containers.state == SharedState.CLOSED)[rows.owner] & (
        state == SharedState.QUASI_CLOSED
    )
    is_stale &= replicas.bcsid != containers.sequence_id[rows.owner]
    is_tree = _table(REPLICA_STATES, TREE_STATES)[state]
    keys = _node_keys(replicas.container, replicas.node, nodes, _NODE_OF_NO_OP)
    op_keys = _node_keys(ops.container, ops.node, nodes, _NODE_OF_NO_REPLICA)
    op_rows = Segments.of(ops.container, count)
    is_delete = ops.kind == PendingOpKind.DELETE
    asked = np.flatnonzero((op_rows.tally(is_delete) > 0)[rows.owner])
    is_stray = is_delete & ~is_among(op_keys, np.sort(keys[asked]))
    of_gone = is_among(op_keys, np.sort(keys[asked[is_gone[asked]]]))
    return BatchView(
        batch=batch,
        rows=rows,
        ops=op_rows,
        service=_of_node(nodes.service, replicas.node, ServiceState.IN_SERVICE),
        rack=_of_node(nodes.rack, replicas.node, -1),
        is_reachable=is_reachable,
        is_alive=is_alive,
        is_gone=is_gone,
        is_present=is_present,
        is_sick=is_sick,
        is_bad=is_sick | (is_present & is_stale),
        is_confirmed=_of_node(nodes.is_confirmed, replicas.node, 0).astype(np.bool_),
        is_tree=is_tree,
        is_countable=is_tree & is_reachable,
        is_leaving=_is_leaving(keys, op_keys[is_delete], asked),
        is_stray_delete=is_stray,
        adds=op_rows.tally(ops.kind == PendingOpKind.ADD),
        deletes=op_rows.tally(is_delete & ~of_gone),
        stray_deletes=op_rows.tally(is_stray),
        present=rows.tally(is_present),
        countable=rows.tally(is_tree & is_reachable),
        is_ec=containers.kind == ReplicationType.EC,
        is_shard=(containers.kind == ReplicationType.EC)[rows.owner],
        is_judged=containers.is_known & ~containers.is_suppressed,
    )


def _is_leaving(keys: Ints, deleted: Ints, asked: Ints) -> Bools:
    """Return, for each replica, True if a pending delete will remove the replica.

    `keys` has a number for each replica that identifies its container and node. `deleted` has these
    numbers for the pending deletes. Only the replicas at the positions `asked` are checked.
    """
    found = np.zeros(len(keys), dtype=np.bool_)
    found[asked] = is_among(keys[asked], np.sort(deleted))
    return found


def violations(batch: ContainerBatch, name_of: Callable[[int], str]) -> list[tuple[int, str]]:
    """Return a pair (container id, text about the fault) for each container with invalid rows, in
    ascending order of the ids.

    `name_of` returns the datanode id of a replica, given the index of the replica in
    `batch.replicas`. It also knows the datanodes that are not in `batch.nodes`.
    """
    replicas, containers = batch.replicas, batch.containers
    container = replicas.container
    same = Groups.of(container, replicas.node)
    is_ec = containers.kind == ReplicationType.EC
    width = np.where(is_ec, containers.data + containers.parity, 0)
    is_astray = (replicas.index < is_ec[container]) | (replicas.index > width[container])
    found: dict[int, str] = {}
    for mask, text in (
        (same.tally()[same.of_row] > 1, "two replicas on datanode {node}"),
        (replicas.node < 0, "a replica on datanode {node} that table nodes/ does not list"),
        (
            is_astray & containers.is_known[container],
            "replica index {index} out of range on datanode {node}",
        ),
    ):
        for row in np.flatnonzero(mask).tolist():
            words = text.format(node=name_of(row), index=int(replicas.index[row]))
            found.setdefault(int(containers.container_id[container[row]]), words)
    return sorted(found.items())


def _of_node(column: NDArray[Any], node: Ints, default: int) -> Ints:
    """Return, for each row, the value that `column` has for the row's node; `default` if the node
    is unknown."""
    return np.append(column.astype(np.int64), default)[node]


def _node_keys(container: Ints, node: Ints, nodes: Nodes, unknown: int) -> Ints:
    """Return, for each row, a number that identifies the row's container and node.

    A replica and an operation on the same container and node get the same number. Rows with an
    unknown node get the number `unknown`. Callers pass one value of `unknown` for replicas and
    another for operations, so that rows with unknown nodes do not match.
    """
    return np.where(node < 0, unknown, container * len(nodes.names) + node)


def _table(words: tuple[str, ...], wanted: tuple[str, ...]) -> Bools:
    """Return an array with one entry per code: True if the word of the code is in `wanted`. The
    code UNKNOWN (-1) selects the last entry."""
    return np.array([word in wanted for word in words], dtype=np.bool_)
