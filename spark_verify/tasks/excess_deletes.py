"""Plans the deletes of all surplus replicas of a container, not only of the first.

The judge returns one replica of each container to delete. To find the next replica, the judge is
called again with the first delete as a pending operation. Therefore one plan has the rows of
several runs. The control plane checks each row again after it has ordered the earlier rows.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from health.batch import Nodes
from health.judge import judge
from health.rules import Rules
from spark_verify.input_columns import CASE
from spark_verify.tasks.judge_batches import cut_of
from spark_verify.tasks.verdict_rows import judged_tables

DELETES_PER_CONTAINER_MAX: Final = 1_023
"""Maximum deletes of one container in one plan, with one call of the judge each. The next run plans
the rest.
"""

OPS: Final = CASE["pending_ops"]


def further_deletes(
    rows: dict[str, pa.Table], plan: pa.Table, nodes: Nodes, rules: Rules
) -> pa.Table:
    """Return rows of `plan/` that delete the remaining surplus replicas after the deletes in
    `plan`. `rows` are the rows of the judged containers, by table.
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
    """Return the rows that delete one of several replicas, without those of emptied containers,
    which are deleted at once.
    """
    return plan.filter(pc.and_(pc.equal(plan["action"], "delete"), plan["is_forced"]))


def _ops(deletes: pa.Table) -> pa.Table:
    """Return these deletes as pending operations."""
    parents = pc.list_parent_indices(deletes["targets"].combine_chunks())
    count = len(parents)
    columns = {
        "container_id": deletes["container_id"].take(parents),
        "op": pa.repeat("DELETE", count),
        "datanode_id": pc.list_flatten(deletes["targets"]),
        "replica_index": pc.list_flatten(deletes["indexes"]),
    }
    return pa.table(columns).cast(OPS)
