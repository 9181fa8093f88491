"""Function on Arrow data that classifies containers. Each container has one input and one result
row.

    cases -> columns for health.judge -> health.judge -> health, with nested rows of other tables

Spark passes all rows of a container together (see `frames.result_frames.cases`). Therefore, no
state is kept between batches. If the rows of a container contradict each other, only the faults are
returned, because the snapshot is then rejected.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema

from health.batch import Nodes, violations
from health.judge import judge
from health.rules import Rules
from health.segmented_rows import Ints
from spark_verify.input_columns import CASE
from spark_verify.result_tables import JUDGED
from spark_verify.tasks.judge_batches import cut_of
from spark_verify.tasks.verdict_rows import VOTE, judged_tables, votes

Batches = Iterator[pa.RecordBatch]

REFUSAL: Final = "refusal"

LISTED: Final[dict[str, pa.Schema]] = {
    **{name: JUDGED[name] for name in ("replica_class", "divergent", "plan")},
    "votes": VOTE,
}
"""Tables whose rows are nested in the result row of a container, in columns with these names."""


DELETES_PER_CONTAINER_MAX: Final = 1_023
"""Maximum number of deletes of one container in one plan. The container is classified once for
each."""

OPS: Final = CASE["pending_ops"]


def _fields(schema: pa.Schema) -> list[pa.Field]:
    return [field for field in schema if field.name != "container_id"]


JUDGED_CASE: Final = pa.schema(
    [
        *JUDGED["health"],
        *(pa.field(name, pa.list_(pa.struct(_fields(own)))) for name, own in LISTED.items()),
        pa.field(REFUSAL, pa.string()),
    ]
)
"""Columns of the result row of a container."""

SPARK_SCHEMA: Final = from_arrow_schema(JUDGED_CASE)


@dataclass(frozen=True, slots=True)
class Case:
    """Facts that are needed to classify containers, in addition to the rows of the containers."""

    nodes: Nodes
    rules: Rules
    versions: tuple[str, ...]
    """Software version of each datanode."""


def judging(case: Case) -> Callable[[Batches], Batches]:
    """Return the function that Spark calls for each partition of the containers."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            if batch.num_rows:
                yield from judged_rows(batch, case).to_batches()

    return run


def judged_rows(cases: pa.RecordBatch, case: Case) -> pa.Table:
    """Classify some containers. Return their rows with the columns of JUDGED_CASE."""
    rows = {name: unnested(cases, name) for name in CASE}
    cut = cut_of(rows["containers"], rows["replicas"], rows["pending_ops"], case.nodes)
    contradictions = violations(
        cut.batch, lambda row: cut.rows([row], "datanode_id")["datanode_id"][0].as_py()
    )
    if contradictions:
        refused, texts = zip(*contradictions, strict=True)
        told = {"container_id": pa.array(refused, pa.int64())}
        return _completed(told | {REFUSAL: pa.array(texts, pa.string())}, len(refused))
    judgement = judge(cut.batch, case.rules)
    tables = judged_tables(judgement, cut)
    further = further_deletes(rows, tables["plan"], case.nodes, case.rules)
    tables["plan"] = pa.concat_tables([tables["plan"], further])
    tables["votes"] = votes(judgement, cut, case.versions)
    ids = cut.batch.containers.container_id
    health = tables["health"]
    found = {name: health[name].combine_chunks() for name in health.column_names}
    found |= {name: nested(tables[name], ids) for name in LISTED}
    return _completed(found, len(ids))


def _completed(columns: dict[str, Any], count: int) -> pa.Table:
    whole = {
        field.name: columns.get(field.name, pa.nulls(count, field.type)) for field in JUDGED_CASE
    }
    return pa.table(whole).cast(JUDGED_CASE)


def unnested(cases: pa.RecordBatch, name: str) -> pa.Table:
    """Return the rows of the table `name` that are nested in the input rows."""
    lists = cases.column(name)
    ids = cases.column("container_id").take(pc.list_parent_indices(lists))
    return pa.Table.from_struct_array(pc.list_flatten(lists)).add_column(0, "container_id", ids)


def nested(table: pa.Table, ids: Ints) -> pa.ListArray:
    """Return for each id the list of its rows in `table`, in the order of the table.

    `ids` must be in ascending order.
    """
    own = table["container_id"].to_numpy()
    order = np.argsort(own, kind="stable")
    starts = np.searchsorted(own[order], np.append(ids, np.iinfo(np.int64).max))
    starts[-1] = len(own)
    fields = _fields(table.schema)
    # Not `Table.to_struct_array`, which before Arrow 18 has no result for a table without rows.
    columns = [table[field.name].take(pa.array(order)).combine_chunks() for field in fields]
    rows = pa.StructArray.from_arrays(columns, fields=fields)
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), rows)


def further_deletes(
    rows: dict[str, pa.Table], plan: pa.Table, nodes: Nodes, rules: Rules
) -> pa.Table:
    """Return more rows of the table `plan/` with deletes, until no container has surplus replicas.

    `health.judge` returns only one replica to delete for each container. To find the next replica,
    it is called again with the first delete as a pending operation. Thereby, one plan has the
    deletes that several runs would plan one after the other. The SCM checks each row again after it
    has ordered the earlier deletes. `rows` has the input rows of the containers, by table.
    """
    found = [plan.schema.empty_table()]
    going = _deletes(plan)
    for _ in range(DELETES_PER_CONTAINER_MAX):
        if not going.num_rows:
            break
        ids = pc.unique(going["container_id"])
        rows = {
            name: table.filter(pc.is_in(table["container_id"], value_set=ids))
            for name, table in rows.items()
        }
        rows["pending_ops"] = pa.concat_tables([rows["pending_ops"].cast(OPS), _ops(going)])
        cut = cut_of(rows["containers"], rows["replicas"], rows["pending_ops"], nodes)
        going = _deletes(judged_tables(judge(cut.batch, rules), cut)["plan"])
        found.append(going)
    return pa.concat_tables(found)


def _deletes(plan: pa.Table) -> pa.Table:
    """Return the rows of `plan` that delete surplus replicas.

    Deletes of the replicas of empty containers are omitted, because the plan already deletes all of
    them.
    """
    return plan.filter(pc.and_(pc.equal(plan["action"], "delete"), plan["is_forced"]))


def _ops(deletes: pa.Table) -> pa.Table:
    """Convert deletes in the table `plan/` to rows of the table `pending_ops/`."""
    parents = pc.list_parent_indices(deletes["targets"].combine_chunks())
    count = len(parents)
    columns = {
        "container_id": deletes["container_id"].take(parents),
        "op": pa.repeat("DELETE", count),
        "datanode_id": pc.list_flatten(deletes["targets"]),
        "replica_index": pc.list_flatten(deletes["indexes"]),
    }
    return pa.table(columns).cast(OPS)
