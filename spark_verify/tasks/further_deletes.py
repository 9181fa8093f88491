"""What a container has too much of, to the last replica.

The judge names one replica of each container, the one that may go now. Which may go after it is
asked of the same judge, who is told that the first is on its way out: so a plan has all rows that
as many runs would have had, and each is one that the control plane confirms once those before it
are ordered.
"""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from health.batch import Nodes
from health.judge import judge
from health.rules import Rules
from spark_verify.input_columns import PENDING_OPS
from spark_verify.tasks.judge_batches import cut_of
from spark_verify.tasks.verdict_rows import RunStamp, judged_tables

DELETES_PER_CONTAINER_MAX: Final = 1_023
"""Of one container in one plan: the judge is asked once for each. The next run names the next."""

OPS: Final = pa.schema([(c.name, c.type) for c in PENDING_OPS if c.name != "snapshot_id"])


def further_deletes(
    rows: dict[str, pa.Table], plan: pa.Table, nodes: Nodes, rules: Rules, stamp: RunStamp
) -> pa.Table:
    """Return rows of `plan/` that delete what is still too much after those of `plan`. `rows` are
    those of the containers that were judged."""
    found = [plan.schema.empty_table()]
    going = _deletes(plan)
    rows = {name: rows[name] for name in ("containers", "replicas", "pending_ops")}
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
        going = _deletes(judged_tables(judge(cut.batch, rules), cut, stamp)["plan"])
        found.append(going)
    return pa.concat_tables(found)


def _deletes(plan: pa.Table) -> pa.Table:
    """Return the rows that delete one replica of several; emptied containers go at once."""
    return plan.filter(pc.and_(pc.equal(plan["action"], "delete"), plan["is_forced"]))


def _ops(deletes: pa.Table) -> pa.Table:
    """Return these deletes as if they were ordered."""
    parents = pc.list_parent_indices(deletes["targets"].combine_chunks())
    count = len(parents)
    columns = {
        "container_id": deletes["container_id"].take(parents),
        "op": pa.repeat("DELETE", count),
        "datanode_id": pc.list_flatten(deletes["targets"]),
        "replica_index": pc.list_flatten(deletes["indexes"]),
        "deadline_ms": deletes["expires_at_ms"].take(parents),
        "command_id": pa.repeat(0, count),
    }
    return pa.table(columns).cast(OPS)
