"""The Spark job's opponent: `python -m bench.verification.duckdb_verify SNAPSHOT OUT`, a process.

DuckDB does what Spark does in the job: it checks every row, screens all containers (the statements
in spark_in_duckdb.sql), fetches the rows of the suspects, counts by volume, and writes. What is
left is judged by the same package `health/` through the same functions as in the job, so that all
rules are decided alike, and the same five tables are written.
"""

import json
import sys
from pathlib import Path
from string import Template
from typing import Any

import duckdb
import pyarrow as pa

from health.plan.plan_rows import SCAN_PRIORITY
from health.rules import Rules
from health.words import QUEUES, REACHABLE_HEALTHS, TREE_STATES, Queue
from spark_verify.file_systems import Place
from spark_verify.input_columns import TABLES
from spark_verify.report.summary import judged_kinds
from spark_verify.snapshot.manifest import Manifest, read_manifest
from spark_verify.tasks.judge_batches import nodes_of
from spark_verify.tasks.judging import PARTS, Case, judge_rows
from spark_verify.tasks.result_files import ordered, write
from spark_verify.tasks.tallies import Tallies
from spark_verify.tasks.verdict_rows import Stamp
from spark_verify.tasks.volume_counts import AGE_DAYS, DAY_MS
from spark_verify.tasks.votes import VOTES

RUN_ID = "duckdb"


def main(snapshot: Path, out: Path) -> None:
    """Verify a snapshot into `out`."""
    manifest = read_manifest(str(snapshot))
    connection = duckdb.connect()
    check(connection, snapshot, manifest)
    nodes = connection.sql(f"FROM '{snapshot}/nodes/*.parquet'").to_arrow_table()
    racks = {node["rack"] for node in nodes.to_pylist() if node["health"] != "DEAD"}
    case = Case(
        nodes_of(nodes),
        Rules(**{"rack_count": max(len(racks), 1)} | manifest.rules),
        Stamp(manifest.snapshot_id, RUN_ID, manifest.as_of_ms),
        manifest,
        tuple(nodes.sort_by("datanode_id")["version"].to_pylist()),
    )
    for name in ("health", "plan"):
        (out / name).mkdir(parents=True)
    for statement in statements(snapshot, out, case):
        connection.execute(statement)
    tallies = Tallies()
    rows = {name: suspects(connection, snapshot, name) for name in PARTS}
    tables = judge_rows(rows, case, tallies)
    del tables[VOTES]
    tables["reconcile_plan"] = reconcile_plan(tables["divergent"])
    tables["plan"] = ordered(tables["plan"], "priority", "container_id", "action")
    for name, table in tables.items():
        write(table, Place.of(out) / name, "0")
    kinds = connection.sql(
        "SELECT state, checksum_class, count(*) FROM screened WHERE plain GROUP BY ALL"
    )
    numbers = {
        "plain": kinds.fetchall(),
        "judged": [str(kind) for kind in judged_kinds(tallies)],
        "volumes": volumes(connection, snapshot, manifest),
    }
    (out / "summary.json").write_text(json.dumps(numbers))


def check(connection: duckdb.DuckDBPyConnection, snapshot: Path, manifest: Manifest) -> None:
    """Ask of every row of every table what the job asks; refuse the snapshot for one."""
    for name, columns in TABLES.items():
        wrong = [f"snapshot_id <> '{manifest.snapshot_id}'"]
        wrong += [f"{c.name} IS NULL" for c in columns if not c.nullable]
        wrong += [f"{c.name} NOT IN ({words(c.words)})" for c in columns if c.words]
        wrong += [
            f"{c.name} < 0"
            for c in columns
            if pa.types.is_integer(c.type)
            and c.name not in ("root", "settled_root", "tombstones_checksum")
        ]
        rows, bad = ask(
            connection,
            "SELECT count(*), count(*) FILTER ($wrong) FROM '$table/*.parquet'",
            wrong=" OR ".join(wrong),
            table=snapshot / name,
        ).fetchall()[0]
        assert (rows, bad) == (manifest.rows[name], 0), f"{name}: {rows} rows, {bad} impossible"


def statements(snapshot: Path, out: Path, case: Case) -> list[str]:
    """Return the statements of spark_in_duckdb.sql, their blanks filled in."""
    text = Path(__file__).with_name("spark_in_duckdb.sql").read_text(encoding="utf-8")
    blanks = case.stamp.columns() | {
        "snapshot": snapshot,
        "out": out,
        "reachable": words(REACHABLE_HEALTHS),
        "tree_states": words(TREE_STATES),
        "rack_count": case.rules.rack_count,
        "ec_redundancy": case.rules.ec_redundancy,
        "maintenance_min": case.rules.maintenance_min,
        "scan_priority": SCAN_PRIORITY,
        "no_queue": QUEUES[Queue.NONE],
    }
    return [one for one in Template(text).substitute(blanks).split(";\n") if one.strip()]


def words(values: Any) -> str:
    """Return words as SQL has them in a list."""
    return ", ".join(f"'{value}'" for value in values)


def suspects(connection: duckdb.DuckDBPyConnection, snapshot: Path, name: str) -> Any:
    """Return the rows of one table that the judge must see."""
    return ask(
        connection,
        "SELECT $columns FROM '$table/*.parquet' SEMI JOIN "
        "(SELECT container_id FROM screened WHERE NOT plain) USING (container_id)",
        columns=", ".join(PARTS[name].names),
        table=snapshot / name,
    ).to_arrow_table()


def reconcile_plan(divergent: Any) -> Any:
    """Return what the control plane takes in, when there is no earlier run."""
    rows = divergent.drop_columns(["attempts", "is_backed_off"])
    return ordered(rows, "priority", "container_id")


def volumes(
    connection: duckdb.DuckDBPyConnection, snapshot: Path, manifest: Manifest
) -> list[tuple[Any, ...]]:
    """Return per volume the replicas, scans that are due and ages of verification."""
    ages = [f"count_if(in_tree AND age <= {days * DAY_MS})" for days in AGE_DAYS]
    rows: list[tuple[Any, ...]] = ask(
        connection,
        """
        SELECT datanode_id, volume_id, count(*), count_if(in_tree), count_if(wanting),
          sum(used_bytes) FILTER (wanting)::BIGINT, $ages, count_if(in_tree AND age IS NULL)
        FROM (SELECT *, state IN ($tree_states) AS in_tree, root IS NOT NULL AS known,
          $as_of_ms - data_scan_at_ms AS age, (in_tree OR load_error IS NOT NULL) AND NOT known
          AS wanting FROM '$snapshot/replicas/*.parquet')
        GROUP BY ALL
        """,
        ages=", ".join(ages),
        tree_states=words(TREE_STATES),
        as_of_ms=manifest.as_of_ms,
        snapshot=snapshot,
    ).fetchall()
    return rows


def ask(connection: duckdb.DuckDBPyConnection, sql: str, **blanks: object) -> Any:
    """Run a statement, its blanks filled in."""
    return connection.sql(Template(sql).substitute(blanks))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
