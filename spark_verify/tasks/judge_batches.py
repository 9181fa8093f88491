"""Converts Arrow tables of a snapshot to the input of `health/`."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from health import words
from health.batch import NO_BCSID, ContainerBatch, Containers, Nodes, Ops, Replicas
from health.segmented_rows import Bools, Ints


def nodes_of(table: pa.Table) -> Nodes:
    """Convert the rows of the table `nodes/` to `Nodes`, sorted by datanode id."""
    table = table.sort_by("datanode_id")
    racks = table["rack"].combine_chunks().dictionary_encode()
    services = [int(words.SERVICE_OF[word]) for word in table["op_state"].to_pylist()]
    return Nodes(
        names=tuple(table["datanode_id"].to_pylist()),
        rack=_longs(racks.indices),
        health=_codes(table["health"], words.NODE_HEALTHS),
        service=np.array(services, dtype=np.int64),
        is_returning=_bools(pc.equal(table["op_state"], "IN_MAINTENANCE")),
        is_confirmed=_bools(table["has_reported"]),
    )


@dataclass(frozen=True, slots=True)
class BatchSlice:
    """A batch of containers for `health/`, and the Arrow rows from which it was created."""

    batch: ContainerBatch
    containers: pa.Table
    """A row for each container of the batch. A container without a row in the input has only
    nulls."""
    table: pa.Table
    order: Ints
    """For each replica of the batch, the index of its row in `table`."""

    def rows(self, which: Ints | list[int], *columns: str) -> pa.Table:
        """Return some columns of the replicas with the indexes `which` in the batch, in this
        order."""
        return self.table.select(columns).take(pa.array(self.order[which]))


def cut_of(containers: pa.Table, replicas: pa.Table, ops: pa.Table, nodes: Nodes) -> BatchSlice:
    """Create a batch of containers for `health/`. The input rows may be in any order.

    A container is marked as unknown if only replicas or pending operations name it.
    """
    tables = (containers, replicas, ops)
    ids = np.unique(np.concatenate([_longs(table["container_id"]) for table in tables]))
    place = pc.index_in(pa.array(ids), value_set=containers["container_id"].combine_chunks())
    containers = containers.take(place)
    names = pa.array(nodes.names, pa.string())
    columns = _replicas(ids, replicas, names)
    columns["origin"], origins = _origins(replicas, columns["node"], nodes)
    order = np.lexsort([columns["node"], columns["index"], columns["container"]])
    batch = ContainerBatch(
        containers=_containers(ids, containers),
        replicas=Replicas(**{name: column[order] for name, column in columns.items()}),
        ops=_ops(ids, ops, names),
        nodes=nodes,
        origins=origins,
    )
    return BatchSlice(batch, containers, replicas, order)


def _origins(table: pa.Table, node: Ints, nodes: Nodes) -> tuple[Ints, tuple[str, ...]]:
    """Return the index of each replica's origin datanode, and the names of all origins, sorted.

    If a replica has no origin, its own datanode is used. `node` has the index of the datanode of
    each replica. The result does not depend on the order of the rows.
    """
    values, codes = coded(table["origin_datanode_id"])
    told = values.to_pylist()
    place = _longs(pc.index_in(values, value_set=pa.array(nodes.names, pa.string())), words.UNKNOWN)
    names = nodes.names
    strange = {w for w, at in zip(told, place.tolist(), strict=True) if w and at == words.UNKNOWN}
    if strange:  # these origins have left the cluster
        names = tuple(sorted({*names, *strange}))
        moved = np.array([bisect_left(names, name) for name in nodes.names], dtype=np.int64)
        node = np.append(moved, words.UNKNOWN)[node]
        place = np.array(
            [bisect_left(names, w) if w else words.UNKNOWN for w in told], dtype=np.int64
        )
    origin = np.append(place, words.UNKNOWN)[codes]
    return np.where(origin == words.UNKNOWN, node, origin), names


def _containers(ids: Ints, table: pa.Table) -> Containers:
    """Convert the rows of the containers `ids` to `Containers`.

    If the input has no row of a container, its row in `table` has only nulls.
    """
    kind = _codes(table["replication_type"], words.REPLICATION_TYPES)
    data, parity, factor = (
        _longs(table[name], 0) for name in ("ec_data", "ec_parity", "replication_factor")
    )
    return Containers(
        container_id=ids,
        kind=kind,
        factor=np.where(kind == words.ReplicationType.EC, data + parity, factor),
        data=data,
        parity=parity,
        state=_codes(table["state"], words.CONTAINER_STATES),
        sequence_id=_longs(table["sequence_id"], 0),
        acknowledged_id=_longs(table["acknowledged_bcsid"], NO_BCSID),
        key_count=_longs(table["key_count"], 0),
        used_bytes=_longs(table["used_bytes"], 0),
        has_pipeline=_bools(table["pipeline_alive"]),
        is_suppressed=_bools(table["suppressed"]),
        owes_deletes=_bools(table["owes_deletes"]),
        is_known=_bools(pc.is_valid(table["container_id"])),
    )


def _replicas(ids: Ints, table: pa.Table, names: pa.Array) -> dict[str, Any]:
    state = _codes(table["state"], words.REPLICA_STATES)
    _, algorithm = coded(table["tree_algorithm"])
    has_root = pc.and_(pc.is_valid(table["root"]), pc.is_valid(table["tree_algorithm"]))
    return {
        "container": np.searchsorted(ids, _longs(table["container_id"])),
        "node": _places(table["datanode_id"], names),
        "index": _longs(table["replica_index"]),
        # A replica that could not be loaded counts as unhealthy in any state.
        "state": np.where(_bools(pc.is_valid(table["load_error"])), words.UNHEALTHY, state),
        "bcsid": _longs(table["bcsid"], NO_BCSID),
        "used_bytes": _longs(table["used_bytes"]),
        "is_empty": _bools(table["is_empty"]),
        "algorithm": algorithm,
        "root": _longs(table["root"], 0),
        "has_root": _bools(has_root),
        "settled": _longs(table["settled_root"], 0),
        "has_settled": _bools(pc.is_valid(table["settled_root"])),
        "tombstones": _longs(table["tombstones_checksum"], 0),
        "has_tombstones": _bools(pc.is_valid(table["tombstones_checksum"])),
        "findings": _longs(table["finding_count"]),
        "is_contradictory": _bools(table["is_contradictory"]),
        "is_loaded": _bools(pc.is_null(table["load_error"])),
        "block_count": _longs(table["block_count"]),
        "tree_block_count": _longs(table["block_count"]),
        "tombstone_count": _longs(table["tombstone_count"], 0),
        "is_barred": _bools(table["is_barred"]),
        "is_hopeful": _bools(table["is_hopeful"]),
    }


def _ops(ids: Ints, table: pa.Table, names: pa.Array) -> Ops:
    container = np.searchsorted(ids, _longs(table["container_id"]))
    order = np.argsort(container, kind="stable")
    return Ops(
        container=container[order],
        kind=_codes(table["op"], words.OPS)[order],
        node=_places(table["datanode_id"], names)[order],
        index=_longs(table["replica_index"])[order],
    )


def _codes(column: pa.ChunkedArray, known: Sequence[str]) -> Ints:
    """Return the index in `known` of each word in a column."""
    return _places(column, pa.array(known, pa.string()))


def _places(column: pa.ChunkedArray, values: pa.Array) -> Ints:
    found, codes = coded(column)
    places = _longs(pc.index_in(found, value_set=values), words.UNKNOWN)
    return np.append(places, words.UNKNOWN)[codes]


def coded(column: pa.ChunkedArray) -> tuple[pa.Array, Ints]:
    """Return the distinct words of a column, and for each row the index of its word.

    The index is UNKNOWN if the row is null.
    """
    whole = column.unify_dictionaries().combine_chunks()
    if not pa.types.is_dictionary(whole.type):
        whole = whole.dictionary_encode()
    return whole.dictionary, _longs(whole.indices, words.UNKNOWN)


def _longs(column: pa.Array | pa.ChunkedArray, missing: int | None = None) -> Ints:
    if missing is not None and column.null_count:
        column = pc.fill_null(column, missing)
    return np.asarray(column.to_numpy(zero_copy_only=False)).astype(np.int64)


def _bools(column: pa.Array | pa.ChunkedArray) -> Bools:
    return np.asarray(pc.fill_null(column, False).to_numpy(zero_copy_only=False)).astype(np.bool_)
