"""Builds the tables of a result as DataFrames.

facts ─┬─► well ────────────────────────────► health/
       └─► others ─► cases ─► judge ─► judged ─┼─► replica_class/
                                               ├─► divergent/ ─► reconcile_plan/
replicas ─────────────────────────────┬─► scans ─► plan/
                                      └─► volumes/  votes/
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from spark_verify.errors import SnapshotRefused
from spark_verify.frames.container_cases import cases
from spark_verify.frames.facts import Inputs, container_facts, node_facts, well_health
from spark_verify.frames.volumes import SCANS_MAX, count_volumes, count_votes, scans
from spark_verify.input_columns import ROWS_PER_CONTAINER_MAX
from spark_verify.result_tables import RESULTS
from spark_verify.snapshot.checks import (
    BY_CONTAINER,
    EXAMPLES_MAX,
    check_counts,
    refuse_crowds,
    refuse_fault,
    refuse_twice,
    table_of_fault,
)
from spark_verify.snapshot.manifest import SCAN_AGAIN
from spark_verify.sql_text import text, texts
from spark_verify.tasks.judge_cases import REFUSAL, SPARK_SCHEMA, Case, judging

BEFORE: Final = ("container_id", "replicas", "attempts")
"""Columns of the previous run's `divergent/` that this run uses."""

Keep = Callable[[str, DataFrame], DataFrame]
"""Writes rows as files of this attempt, under a name, and returns them as read back. Later steps
and retries then read these files and not the snapshot.
"""


IS_CROWD: Final = f"greatest(replicas, ops) > {ROWS_PER_CONTAINER_MAX}"
IS_STRAY: Final = "containers + replicas = 0 AND ops > 0"


@dataclass(frozen=True, slots=True)
class JudgedContainers:
    """All containers of a run: the plainly well ones and the judged ones."""

    inputs: Inputs
    case: Case
    facts: DataFrame
    """Numbers of every verified container."""
    cases: DataFrame
    """Judged cases of the containers that are not plainly well."""
    counts: dict[str, int]
    """Row counts of some tables, by name."""


def judge_containers(
    spark: SparkSession, inputs: Inputs, case: Case, keep: Keep
) -> JudgedContainers:
    """Judge all containers. Raise SnapshotRefused for invalid rows."""
    nodes = node_facts(spark, inputs)
    facts = keep("facts", container_facts(inputs, nodes))
    total = _check_facts(facts, inputs, nodes)
    if inputs.changed_nodes:
        facts_kept = facts.filter("is_changed = 1")
        total = facts_kept.count()
    else:
        facts_kept = facts
    judged = cases(inputs.snapshot, facts_kept.filter("not is_well").select("container_id"))
    judged = keep("judged", judged.mapInArrow(judging(case), SPARK_SCHEMA))
    counts = _check_judged(judged)
    return JudgedContainers(inputs, case, facts_kept, judged, counts | {"health": total})


def _check_facts(facts: DataFrame, inputs: Inputs, nodes: DataFrame) -> int:
    """Return the number of containers. Raise SnapshotRefused for invalid rows."""
    row = facts.selectExpr(
        "count(*) AS total",
        *(f"coalesce(sum({name}), 0L) AS {name}" for name in ("containers", "replicas", "ops")),
        "min(fault) AS fault",
        "count_if(containers > 1) AS twice",
        f"count_if({IS_CROWD}) AS crowds",
        f"count_if({IS_STRAY}) AS strays",
    ).first()
    assert row is not None, "an aggregate has a row"
    counts = dict(zip(BY_CONTAINER, (row["containers"], row["replicas"], row["ops"]), strict=True))
    check_counts(inputs.manifest, counts)
    if row["fault"] is not None:
        name = table_of_fault(row["fault"])
        rows = inputs.snapshot.table(name)
        if name == "pending_ops":
            rows = rows.join(nodes.select("datanode_id", "node_place"), "datanode_id", "left")
        refuse_fault(row["fault"], rows, inputs.manifest)
    if row["twice"]:
        ids = _first(facts.filter("containers > 1"))
        refuse_twice("containers", [f"container_id {one['container_id']}" for one in ids])
    if row["crowds"]:
        crowds = _first(facts.filter(IS_CROWD))
        refuse_crowds([_crowd(one) for one in crowds])
    if row["strays"]:
        strays = facts.filter(IS_STRAY).select("container_id")
        named = inputs.snapshot.pending_ops.join(strays, "container_id", "left_semi")
        shown = ", ".join(
            f"(container_id {one['container_id']}, datanode_id {one['datanode_id']}: "
            f"op={one['op']})"
            for one in _first(named)
        )
        raise SnapshotRefused(
            f"table pending_ops/: row(s) whose container is in no other table; first: {shown}",
            hint=SCAN_AGAIN,
        )
    return int(row["total"])


def _crowd(row: Any) -> tuple[str, int, int]:
    is_of_replicas = row["replicas"] > ROWS_PER_CONTAINER_MAX
    name, count = ("replicas", "replicas") if is_of_replicas else ("pending_ops", "ops")
    return name, row["container_id"], row[count]


def _check_judged(judged: DataFrame) -> dict[str, int]:
    """Return how many rows judged containers have in other tables. Raise SnapshotRefused if the
    rows of a container contradict each other.
    """
    tables = ("replica_class", "divergent")
    found = judged.selectExpr(
        f"count({REFUSAL}) AS refused",
        *(f"coalesce(sum(size({name})), 0L) AS {name}" for name in tables),
    ).first()
    assert found is not None, "an aggregate has a row"
    if not found["refused"]:
        return {name: int(found[name]) for name in tables}
    rows = _first(judged.filter(f"{REFUSAL} IS NOT NULL"))
    shown = ", ".join(f"(container {row['container_id']}: {row[REFUSAL]})" for row in rows)
    raise SnapshotRefused(
        f"the tables contradict each other: {shown}",
        hint="export the snapshot again from the SCM",
    )


def _first(rows: DataFrame) -> list[Any]:
    found: list[Any] = rows.orderBy("container_id").limit(EXAMPLES_MAX).collect()
    return found


def health(judged: JudgedContainers) -> DataFrame:
    """Return the rows of `health/`."""
    own = judged.cases.select(*RESULTS["health"].schema.names)
    return well_health(judged.facts, judged.inputs.manifest.snapshot_id).unionByName(own)


def replica_class(judged: JudgedContainers) -> DataFrame:
    """Return the rows of `replica_class/`."""
    return judged.cases.selectExpr("container_id", "inline(replica_class)")


def divergent(judged: JudgedContainers, before: DataFrame | None) -> DataFrame:
    """Return the rows of `divergent/`; `before` are those of the previous run.

    A reconcile cannot help if all replicas are healthy by their own scans and still differ. A
    container whose replicas are unchanged since its last plan is therefore planned less and less
    often: at its 1st, 2nd, 3rd, 5th, 9th ... run.
    """
    rows = judged.cases.selectExpr("container_id", "inline(divergent)")
    if before is None:
        return rows
    kept = (name for name in RESULTS["reconcile_plan"].schema.names)
    columns = ", ".join(f"found.{name}" for name in kept)
    return rows.sparkSession.sql(
        f"""
        SELECT *, bit_count(attempts) > 1 AS is_backed_off FROM (
            SELECT {columns}, if(old.replicas <=> found.replicas, old.attempts + 1, 0) AS attempts
            FROM {{rows}} AS found LEFT JOIN {{before}} AS old
                ON found.container_id = old.container_id)
        """,  # noqa: S608 -- our names
        rows=rows,
        before=before,
    )


def chosen_replicas(judged: JudgedContainers) -> DataFrame:
    """Return the replicas of all verified containers."""
    replicas = judged.inputs.snapshot.replicas
    if not judged.inputs.changed_nodes:
        return replicas
    return replicas.join(judged.facts.select("container_id"), "container_id", "left_semi")


def volumes(judged: JudgedContainers) -> DataFrame:
    """Return the rows of `volumes/`."""
    own = judged.facts.filter("not is_well").select("container_id")
    return count_volumes(chosen_replicas(judged), own, judged.inputs.manifest.as_of_ms)


def votes(judged: JudgedContainers, volumes: DataFrame) -> DataFrame:
    """Return the rows of `votes/`; `volumes` are those of `volumes/`."""
    return count_votes(judged.cases, volumes)


def reconcile_rows(divergent: DataFrame) -> DataFrame:
    """Return the rows of `reconcile_plan/`; `divergent` are those of `divergent/`."""
    return divergent.filter("not is_backed_off").sort("priority", "container_id")


def plan(
    judged: JudgedContainers, silent: Sequence[str], *, scan_count: int, tree_count: int
) -> DataFrame:
    """Return the rows of `plan/`: those of the judge, and scans of replicas without a root.

    Datanodes in `silent` get no scan. `scan_count` replicas need a scan; `tree_count` replicas are
    in a state with a tree.
    """
    inputs, stamp = judged.inputs, judged.case.stamp.columns()
    order = "place"
    own = judged.cases.selectExpr("container_id", f"posexplode(plan) AS ({order}, row)")
    own = own.selectExpr("container_id", order, "row.*")
    if scan_count and not inputs.changed_nodes:
        replicas = inputs.snapshot.replicas
        if silent:
            replicas = replicas.filter(f"datanode_id NOT IN ({texts(silent)})")
        is_mass = scan_count > SCANS_MAX and 2 * scan_count > tree_count
        listed = scans(replicas, listed_max=SCANS_MAX if is_mass else None).selectExpr(
            "*",
            f"{text(str(stamp['snapshot_id']))} AS snapshot_id",
            f"{stamp['as_of_ms']}L AS as_of_ms",
            f"{stamp['expires_at_ms']}L AS expires_at_ms",
            f"0 AS {order}",
        )
        own = own.unionByName(listed)
    return own.sort("priority", "container_id", "action", order)
