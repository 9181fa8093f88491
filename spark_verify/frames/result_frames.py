"""Builds the tables of a result as DataFrames.

    facts ─┬─► well ────────────────────────────► health/
           └─► others ─► cases ─► judge ─► judged ─┼─► replica_class/
                                                   ├─► divergent/ ─► reconcile_plan/
    replicas ─────────────────────────────┬─► scans ─► plan/
                                          └─► volumes/  votes/

`well` are obviously healthy containers. `judge` is the function `health.judge`, which classifies
the other containers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_verify.errors import SnapshotRefused
from spark_verify.frames.facts import Inputs, container_facts, node_facts, ops_on_nodes, well_health
from spark_verify.frames.volumes import SCANS_MAX, count_volumes, scans
from spark_verify.input_columns import CASE
from spark_verify.result_tables import JUDGED
from spark_verify.snapshot import checks
from spark_verify.snapshot.tables import Snapshot
from spark_verify.sql_text import texts
from spark_verify.tasks.judge_batches import nodes_of
from spark_verify.tasks.judge_cases import REFUSAL, SPARK_SCHEMA, Case, judging

BEFORE: Final = ("container_id", "replicas", "attempts")
"""Columns of the previous run's table `divergent/` that this run uses."""

Keep = Callable[[str, DataFrame], DataFrame]
"""Function that writes rows to files of this attempt, under a name, and reads them from these
files."""


@dataclass(frozen=True, slots=True)
class JudgedContainers:
    """The containers of a run in two groups: obviously healthy containers, and classified
    containers.

    The functions in `health/` have classified each container that is not obviously healthy.
    """

    inputs: Inputs
    facts: DataFrame
    """A row of numbers for each verified container."""
    cases: DataFrame
    """The result of the classification of each container that is not obviously healthy."""
    counts: dict[str, int]
    """Number of rows of some result tables, by the name of the table."""


def judge_containers(spark: SparkSession, inputs: Inputs, keep: Keep) -> JudgedContainers:
    """Determine the health of all containers. Raise SnapshotRefused if the input has invalid
    rows."""
    nodes = node_facts(spark, inputs)
    facts = keep("facts", container_facts(inputs, nodes))
    is_verified = "is_changed = 1" if inputs.changed_nodes else "true"
    total = _check_facts(facts, inputs, nodes, is_verified)
    facts = facts.filter(is_verified)
    judged = cases(inputs.snapshot, facts.filter("not is_well").select("container_id"))
    versions = tuple(node["version"] for node in inputs.nodes)
    rows = pa.Table.from_pylist(list(inputs.nodes))
    case = Case(nodes_of(rows), inputs.rules, versions)
    judged = keep("judged", judged.mapInArrow(judging(case), SPARK_SCHEMA))
    counts = _check_judged(judged)
    return JudgedContainers(inputs, facts, judged, counts | {"health": total})


def cases(snapshot: Snapshot, wanted: DataFrame) -> DataFrame:
    """Return one row for each container in `wanted`, with the container's rows of each table as
    lists.

    The list `containers` is empty if only replicas or pending operations name the container.
    """
    parts = []
    for name, schema in CASE.items():
        fields = ", ".join(column for column in schema.names if column != "container_id")
        own = snapshot[name].selectExpr("container_id", f"struct({fields}) AS {name}")
        parts.append(own.join(wanted, "container_id", "left_semi"))
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.unionByName(part, allowMissingColumns=True)
    lists = ", ".join(f"collect_list({name}) AS {name}" for name in CASE)
    return rows.sparkSession.sql(
        f"SELECT container_id, {lists} FROM {{rows}} GROUP BY container_id",  # noqa: S608 -- our names
        rows=rows,
    )


def _check_facts(facts: DataFrame, inputs: Inputs, nodes: DataFrame, is_verified: str) -> int:
    """Check the combined rows of all containers, and return the number of verified containers.

    Raise SnapshotRefused if the input has invalid rows.
    """
    row = facts.selectExpr(
        f"count_if({is_verified}) AS verified",
        *(f"coalesce(sum({name}), 0L) AS {name}" for name in checks.BY_CONTAINER),
        "min(fault) AS fault",
        *(f"count_if({is_broken}) AS `{is_broken}`" for is_broken in checks.CONTAINER_CHECKS),
    ).first()
    assert row is not None, "an aggregate has a row"
    checks.check_counts(inputs.manifest, {name: row[name] for name in checks.BY_CONTAINER})
    if row["fault"] is not None:
        tables = {**inputs.snapshot, "pending_ops": ops_on_nodes(inputs, nodes)}
        checks.refuse_fault(row["fault"], tables, inputs.manifest)
    for is_broken in checks.CONTAINER_CHECKS:
        if row[is_broken]:
            checks.refuse_containers(is_broken, facts)
    return int(row["verified"])


def _check_judged(judged: DataFrame) -> dict[str, int]:
    """Return the numbers of rows that classified containers have in `replica_class/` and
    `divergent/`.

    Raise SnapshotRefused if the input rows of a container contradict each other.
    """
    tables = ("replica_class", "divergent")
    found = judged.selectExpr(
        f"count({REFUSAL}) AS refused",
        *(f"coalesce(sum(size({name})), 0L) AS {name}" for name in tables),
    ).first()
    assert found is not None, "an aggregate has a row"
    if not found["refused"]:
        return {name: int(found[name]) for name in tables}
    rows = checks.first_rows(judged.filter(f"{REFUSAL} IS NOT NULL"), "container_id")
    shown = ", ".join(f"(container {row['container_id']}: {row[REFUSAL]})" for row in rows)
    raise SnapshotRefused(
        f"the tables contradict each other: {shown}",
        hint="export the snapshot again from the SCM",
    )


def health(judged: JudgedContainers) -> DataFrame:
    """Return the rows of the table `health/`."""
    own = judged.cases.select(*JUDGED["health"].names)
    return well_health(judged.facts).unionByName(own)


def divergent(judged: JudgedContainers, before: DataFrame | None) -> DataFrame:
    """Return the rows of the table `divergent/`. `before` has the rows of the previous run, or is
    None.

    A reconcile has no effect if all replicas match their own index rows but still differ.
    Therefore, a container whose roots do not change is planned less and less often: at its 1st,
    2nd, 3rd, 5th, 9th ... run.
    """
    rows = judged.cases.selectExpr("container_id", "inline(divergent)")
    if before is None:
        return rows
    kept = (name for name in JUDGED["divergent"].names if name not in ("attempts", "is_backed_off"))
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


def volumes(judged: JudgedContainers) -> DataFrame:
    """Return the rows of the table `volumes/`."""
    replicas, inputs = judged.inputs.snapshot["replicas"], judged.inputs
    if inputs.changed_nodes:
        verified = judged.facts.select("container_id")
        replicas = replicas.join(verified, "container_id", "left_semi")
    own = judged.facts.filter("not is_well").select("container_id")
    return count_volumes(replicas, own, inputs.manifest.as_of_ms)


def plan(judged: JudgedContainers, volumes: Sequence[dict[str, Any]]) -> DataFrame:
    """Return the rows of the table `plan/`: the planned repairs, and scans of replicas without a
    root.

    Scans are planned only on reachable datanodes. `volumes` are the rows of the table `volumes/`.
    """
    inputs = judged.inputs
    scan_count, tree_count = (sum(v[name] for v in volumes) for name in ("scans", "in_tree"))
    order = "place"
    own = judged.cases.selectExpr("container_id", f"posexplode(plan) AS ({order}, row)")
    own = own.selectExpr("container_id", order, "row.*")
    if scan_count and not inputs.changed_nodes:
        replicas = inputs.snapshot["replicas"]
        if inputs.silent:
            replicas = replicas.filter(f"datanode_id NOT IN ({texts(inputs.silent)})")
        is_mass = scan_count > SCANS_MAX and 2 * scan_count > tree_count
        listed = scans(replicas, listed_max=SCANS_MAX if is_mass else None)
        own = own.unionByName(listed.selectExpr("*", f"0 AS {order}"))
    return own.sort("priority", "container_id", "action", order)
