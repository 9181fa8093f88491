"""A judgement as Arrow: one row per container, with its replicas and its rows of the plan."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import types as t

from health.doubts import DOUBTS
from health.judge import Judgement, roles
from health.plan.actions import Lists
from health.reconcile import REASONS, REDUNDANCY_UNKNOWN
from health.segments import Ints
from health.words import (
    ACTIONS,
    CLASSES,
    CONTAINER_STATES,
    ELIGIBILITY,
    QUEUES,
    REPLICA_STATES,
    REPLICATION_TYPES,
    ROLES,
)
from spark_verify.batches import Cut


@dataclass(frozen=True, slots=True)
class Shape:
    """A struct as Spark and as Arrow know it."""

    spark: t.StructType
    arrow: pa.StructType


_KINDS: Final[dict[str, tuple[t.DataType, pa.DataType]]] = {
    "long": (t.LongType(), pa.int64()),
    "int": (t.IntegerType(), pa.int32()),
    "string": (t.StringType(), pa.string()),
    "boolean": (t.BooleanType(), pa.bool_()),
}


def _shape(text: str, **lists: Shape) -> Shape:
    """Parse `name type` lines: `?` may be null, `*` is a list; `lists` are lists of structs."""
    spark, arrow = [], []
    for line in text.strip().splitlines():
        name, kind = line.split()
        of_spark, of_arrow = _KINDS[kind.rstrip("?*")]
        if kind.endswith("*"):
            of_spark, of_arrow = t.ArrayType(of_spark, containsNull=False), pa.list_(of_arrow)
        spark.append(t.StructField(name, of_spark, kind.endswith("?")))
        arrow.append(pa.field(name, of_arrow))
    for name, shape in lists.items():
        spark.append(t.StructField(name, t.ArrayType(shape.spark, containsNull=False)))
        arrow.append(pa.field(name, pa.list_(shape.arrow)))
    return Shape(t.StructType(spark), pa.struct(arrow))


REPLICA_ROW: Final = _shape(
    """
    datanode_id string
    replica_index int
    volume_id string
    state string
    root long?
    tree_algorithm string?
    finding_count int
    is_reachable boolean
    is_countable boolean
    role string
    is_minority boolean
    """
)
ACTION_ROW: Final = _shape(
    """
    action string
    priority int
    reason string
    sources string*
    doubts string*
    targets string*
    indexes int*
    copies int
    is_forced boolean
    bytes_estimated long
    """
)
TALLY_ROW: Final = _shape(
    """
    what string
    key string*
    numbers long*
    ids long*
    """
)
JUDGED_ROW: Final = _shape(
    """
    container_id long?
    state string?
    replication_type string?
    health_state int?
    flags long?
    queue string?
    is_qc_stuck boolean?
    checksum_class string?
    eligibility string?
    remaining_redundancy int?
    replica_count int?
    is_known boolean?
    is_wanted boolean?
    reason string?
    bytes_estimated long?
    """,
    replicas=REPLICA_ROW,
    actions=ACTION_ROW,
    tallies=TALLY_ROW,
)
"""One row a container; in the row of a task's tallies all else is null."""


def judged_rows(judgement: Judgement, cut: Cut) -> pa.RecordBatch:
    """Return the judged containers of a batch."""
    replicas = Lists(judgement.view.rows.starts, np.arange(cut.replicas.num_rows))
    count = judgement.view.rows.count
    return _record(
        _container_columns(judgement)
        | {
            "replicas": _lists(replicas, _replica_structs(judgement, cut)),
            "actions": _action_lists(judgement),
            "tallies": pa.nulls(count, JUDGED_ROW.arrow.field("tallies").type),
        }
    )


def tally_row(tallies: Sequence[dict[str, object]]) -> pa.RecordBatch:
    """Return the row that carries a task's tallies."""
    columns = {field.name: pa.nulls(1, field.type) for field in JUDGED_ROW.arrow}
    return _record(
        columns | {"tallies": pa.array([tallies], JUDGED_ROW.arrow.field("tallies").type)}
    )


def _record(columns: dict[str, pa.Array]) -> pa.RecordBatch:
    schema = pa.schema(list(JUDGED_ROW.arrow))
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _container_columns(judgement: Judgement) -> dict[str, pa.Array]:
    view, verdicts, reconciles = judgement.view, judgement.verdicts, judgement.reconciles
    containers = view.batch.containers
    reasons, which = np.unique(reconciles.reasons, return_inverse=True)
    texts = [
        "; ".join(word for place, word in enumerate(REASONS) if mask >> place & 1)
        for mask in reasons.tolist()
    ]
    is_unknown = reconciles.redundancy == REDUNDANCY_UNKNOWN
    return {
        "container_id": pa.array(containers.container_id),
        "state": _words(containers.state, CONTAINER_STATES),
        "replication_type": _words(containers.kind, REPLICATION_TYPES),
        "health_state": pa.array(verdicts.state, pa.int32()),
        "flags": pa.array(judgement.flags),
        "queue": _words(verdicts.queue, QUEUES),
        "is_qc_stuck": pa.array(verdicts.is_stuck),
        "checksum_class": _words(judgement.compared.checksum_class, CLASSES),
        "eligibility": _words(reconciles.eligibility, ELIGIBILITY),
        "remaining_redundancy": pa.array(reconciles.redundancy, pa.int32(), mask=is_unknown),
        "replica_count": pa.array(view.rows.sizes(), pa.int32()),
        "is_known": pa.array(containers.is_known),
        "is_wanted": pa.array(reconciles.is_wanted),
        "reason": _words(which, texts),
        "bytes_estimated": pa.array(reconciles.bytes_estimated),
    }


def _replica_structs(judgement: Judgement, cut: Cut) -> pa.StructArray:
    view = judgement.view
    replicas = view.batch.replicas
    shown = ("datanode_id", "replica_index", "volume_id", "root", "tree_algorithm", "finding_count")
    columns = {name: cut.replicas[name].combine_chunks() for name in shown} | {
        "state": _words(replicas.state, REPLICA_STATES),
        "is_reachable": pa.array(view.is_reachable),
        "is_countable": pa.array(view.is_countable),
        "role": _words(roles(judgement), ROLES),
        "is_minority": pa.array(judgement.compared.is_minority),
    }
    return _structs(REPLICA_ROW, columns)


def _action_lists(judgement: Judgement) -> pa.ListArray:
    actions, batch = judgement.actions, judgement.view.batch
    order = np.argsort(actions.container, kind="stable")
    names = pa.array(batch.nodes.names, pa.string())

    def named(lists: Lists) -> pa.ListArray:
        return _lists(lists, names.take(pa.array(batch.replicas.node[lists.values])))

    doubts = source_doubts(judgement)
    columns = {
        "action": _words(actions.action, ACTIONS),
        "priority": pa.array(actions.priority, pa.int32()),
        "reason": pa.array(_warned(actions.reason.tolist(), doubts), pa.string()),
        "sources": named(actions.sources),
        "doubts": pa.array(doubts, pa.list_(pa.string())),
        "targets": named(actions.targets),
        "indexes": _lists(actions.indexes, pa.array(actions.indexes.values, pa.int32())),
        "copies": pa.array(actions.copies, pa.int32()),
        "is_forced": pa.array(actions.is_forced),
        "bytes_estimated": pa.array(actions.bytes_estimated),
    }
    rows = _structs(ACTION_ROW, columns).take(pa.array(order))
    own = actions.container[order]
    return _lists(Lists.of(own, own, judgement.view.rows.count), rows)


def source_doubts(judgement: Judgement) -> list[list[str]]:
    """Return for each row of the plan what speaks against its sources, as text."""
    actions, batch = judgement.actions, judgement.view.batch
    told: list[list[str]] = [[] for _ in range(len(actions.container))]
    place = np.repeat(np.arange(len(told)), actions.sources.sizes())
    codes = judgement.doubts[actions.sources.values]
    for i in np.flatnonzero(codes).tolist():
        name = batch.nodes.names[batch.replicas.node[actions.sources.values[i]]]
        told[place[i]].append(f"{name}: {DOUBTS[codes[i]]}")
    return told


def _warned(reasons: Iterable[str], doubts: Sequence[Sequence[str]]) -> list[str]:
    """Return the reasons, each with what speaks against the sources of its row."""
    return [
        f"{reason}; no better source than {'; '.join(told)}" if told else reason
        for reason, told in zip(reasons, doubts, strict=True)
    ]


def _structs(shape: Shape, columns: dict[str, pa.Array]) -> pa.StructArray:
    fields = list(shape.arrow)
    return pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields)


def _lists(lists: Lists, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(lists.starts, pa.int32()), values)


def _words(codes: Ints, words: Sequence[str]) -> pa.Array:
    """Return the words of codes; null for UNKNOWN."""
    return pa.array(words, pa.string()).take(pa.array(codes, mask=codes < 0))
