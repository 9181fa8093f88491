"""Runs the judge as an Arrow function, with one row per container as input and as output.

    cases -> columns of the judge -> health.judge -> health, with nested rows of other tables

Spark passes all rows of a container together (`frames.result_frames.cases`), so that no state is
kept between batches. If the rows of a container are inconsistent, only the faults are returned,
because the snapshot is then rejected.
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
"""Tables whose rows are nested in the row of a judged container, in columns of these names."""


DELETES_PER_CONTAINER_MAX: Final = 1_023
"""Maximum number of deletes of one container in one plan. The judge is called once for each."""

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
"""Columns of the row of a judged container."""

SPARK_SCHEMA: Final = from_arrow_schema(JUDGED_CASE)


@dataclass(frozen=True, slots=True)
class Case:
    """Facts that the judge needs in addition to the rows of the containers."""

    nodes: Nodes
    rules: Rules
    versions: tuple[str, ...]
    """The software version of each node."""


def judging(case: Case) -> Callable[[Batches], Batches]:
    """Return the function that Spark calls with the cases of a partition."""

    def run(batches: Batches) -> Batches:
        for batch in batches:
            if batch.num_rows:
                yield from judged_rows(batch, case).to_batches()

    return run


def judged_rows(cases: pa.RecordBatch, case: Case) -> pa.Table:
    """Judge some cases. Return their rows with the columns of JUDGED_CASE."""
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
    """Return the rows of table `name` that are nested in the cases."""
    lists = cases.column(name)
    ids = cases.column("container_id").take(pc.list_parent_indices(lists))
    return pa.Table.from_struct_array(pc.list_flatten(lists)).add_column(0, "container_id", ids)


def nested(table: pa.Table, ids: Ints) -> pa.ListArray:
    """Return, for each id, the list of its rows in `table`, in the order of the table. `ids` must
    be ascending."""
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
    """Return the rows of `plan/` for the deletes that follow those in `plan`, until no container
    has surplus replicas. `rows` has the rows of the judged containers, by table.

    The judge returns one replica per container to delete. To find the next one, it is called again
    with the first delete as a pending operation. Therefore one plan has the deletes that several
    runs would plan. The control plane checks each row again after it has ordered the earlier rows.
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
    """Return the rows of `plan` that delete surplus replicas. The deletes of an empty container's
    replicas are not included, because all of these replicas are deleted at once."""
    return plan.filter(pc.and_(pc.equal(plan["action"], "delete"), plan["is_forced"]))


def _ops(deletes: pa.Table) -> pa.Table:
    """Return rows of `pending_ops/` that represent the given rows of `plan/` with deletes."""
    parents = pc.list_parent_indices(deletes["targets"].combine_chunks())
    count = len(parents)
    columns = {
        "container_id": deletes["container_id"].take(parents),
        "op": pa.repeat("DELETE", count),
        "datanode_id": pc.list_flatten(deletes["targets"]),
        "replica_index": pc.list_flatten(deletes["indexes"]),
    }
    return pa.table(columns).cast(OPS)
