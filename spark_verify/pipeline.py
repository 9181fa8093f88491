"""One verification from snapshot to finished result.

    snapshot ─► screen ─► plain ─────────────────────────────► health/
                   └────► suspects ─► cases ─► compare ─► judge ─┬► health/  replica_class/
                                                                 ├► reconcile_plan/  divergent/
                                                                 └► plan/
    and from all of it: summary.json, report.html, manifest.json, at last _SUCCESS

Everything is written to a hidden directory beside the target and renamed when it is whole.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_verify.actions import action_plan, scan_plan
from spark_verify.case import REPLICA_COLUMNS, build_cases, located_replicas, violation
from spark_verify.compare import compare
from spark_verify.errors import SnapshotRefused
from spark_verify.health import QUEUE_NONE, judge_health
from spark_verify.history import Previous, previous_run, with_attempts
from spark_verify.leaving import leaving_nodes
from spark_verify.plan import judge_reconcile, reconcile_plan
from spark_verify.report import render
from spark_verify.rows import HEALTH, RESULT_VERSION, ROWS_PER_CONTAINER_MAX
from spark_verify.rules import Rules
from spark_verify.runs import finished, inputs_of, run_id_of, work_directory
from spark_verify.screen import screen, screen_clustered
from spark_verify.session import interpreted, open_session
from spark_verify.snapshot import (
    EXAMPLES_MAX,
    Manifest,
    Snapshot,
    check_age,
    check_changed,
    check_count,
    check_crowds,
    check_nodes,
    check_pending,
    check_reporting,
    check_rows,
    check_there,
    close_snapshot,
    open_snapshot,
    prove_rows,
    read_manifest,
)
from spark_verify.summary import (
    blame,
    count_health,
    count_lost,
    count_plan,
    count_volumes,
    exit_code,
    samples,
    text_report,
    verification_ages,
)

DIRECT_ROWS: Final = 50_000
"""Replica rows below which the screen costs more than it saves: all are judged."""

REPORTING_MIN_PERCENT: Final = 50
"""Nodes that must answer, of all in service or leaving: else silence would pass for loss."""

BROADCAST_IDS_MAX: Final = 4_000_000
"""Suspects whose ids every executor can hold: 64 MB."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What to verify and where to put the result."""

    snapshot: str
    out: Path
    run_id: str = ""
    master: str = ""
    changed_nodes: tuple[str, ...] = ()
    """When given, only containers with a replica on one of these nodes are verified."""
    age_max_s: int = 0
    """A snapshot older than this is refused; 0: of any age."""
    reporting_min_percent: int = REPORTING_MIN_PERCENT
    """Of the nodes that should answer; with fewer the snapshot is refused."""
    rules: Rules = field(default_factory=Rules)
    direct_rows: int = DIRECT_ROWS


@dataclass(frozen=True, slots=True)
class Result:
    """Where a finished run lies and what it found."""

    directory: Path
    summary: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One run under way."""

    request: Request
    manifest: Manifest
    run_id: str
    inputs: dict[str, Any]
    work: Path
    say: Progress
    seconds: dict[str, float]

    def stamp(self) -> dict[str, Any]:
        """Return what every plan row carries."""
        return {
            "snapshot_id": self.manifest.snapshot_id,
            "run_id": self.run_id,
            "as_of_ms": self.manifest.as_of_ms,
        }

    def timed(self, phase: str, started_s: float) -> None:
        """Remember how long a phase took."""
        self.seconds[phase] = round(time.monotonic() - started_s, 3)


def verify(request: Request, progress: Progress = lambda _: None) -> Result:
    """Verify a snapshot and write the result to `out/run_id=<run_id>`.

    A finished run is returned as it is, if it answers the same question. Raises SnapshotRefused
    when the snapshot cannot be believed, RunConflict when the run id belongs to another question or
    another process writes it now. Either way nothing is left behind.
    """
    manifest = read_manifest(request.snapshot)
    check_age(manifest, request.age_max_s, time.time_ns() // 1_000_000)
    run_id = run_id_of(request.run_id, manifest, request.changed_nodes)
    inputs = inputs_of(
        manifest,
        changed_nodes=request.changed_nodes,
        rules=request.rules,
        reporting_min_percent=request.reporting_min_percent,
    )
    target = request.out / f"run_id={run_id}"
    known = finished(target, inputs)
    if known is not None:
        progress(f"run {run_id} is finished already")
        return Result(target, known)
    with work_directory(request.out, run_id) as work:
        progress("starting Spark")
        spark = open_session(replica_count=manifest.rows["replicas"], master=request.master)
        try:
            summary = _run(spark, Run(request, manifest, run_id, inputs, work, progress, {}))
        finally:
            close_snapshot(spark, manifest)
        shutil.rmtree(target, ignore_errors=True)  # left by a run that never got its _SUCCESS
        work.rename(target)
        (target / "_SUCCESS").touch()
    return Result(target, summary)


def _run(spark: SparkSession, run: Run) -> dict[str, Any]:
    manifest = run.manifest
    run.say(f"reading snapshot {manifest.snapshot_id}: {manifest.rows['replicas']:,} replicas")
    snapshot = open_snapshot(spark, run.request.snapshot, manifest)
    check_there(snapshot)
    nodes = _check_small_tables(snapshot)
    check_changed(nodes, run.request.changed_nodes)
    check_reporting(nodes, run.request.reporting_min_percent)
    racks = {node["rack"] for node in nodes if node["health"] != "DEAD"}
    rules = replace(run.request.rules, rack_count=max(len(racks), 1))
    part, replica_count = _suspects(snapshot, run, rules)
    started_s = time.monotonic()
    with interpreted(spark, row_count=replica_count):
        # Read back: what follows asks many small things of it, each planned on a file, not on
        # the hundred expressions that made it.
        judged = _kept(judge(part, rules), run.work / "judged")
        for table in (part.containers, part.replicas):
            table.unpersist()
        _refuse_impossible(judged)
        _write(judged.select(*HEALTH), run.work / "health")
        run.timed("judge", started_s)
        run.say("planning")
        started_s = time.monotonic()
        planned = _planned(judged, run)
    summary = _conclude(snapshot, judged, planned, nodes, run)
    run.timed("conclude", started_s)
    summary["rules"] = asdict(rules)
    summary["exit_code"] = exit_code(summary)
    summary["text_report"] = text_report(summary)
    _write_text(run.work / "summary.json", json.dumps(summary, indent=2))
    _write_text(run.work / "report.html", render(summary))
    _write_text(run.work / "manifest.json", json.dumps(_result_manifest(run, summary), indent=2))
    return summary


def _check_small_tables(snapshot: Snapshot) -> list[Any]:
    """Check nodes and pending ops whole, and return the nodes."""
    for name, count in check_rows(snapshot, ("nodes", "pending_ops")).items():
        check_count(snapshot.manifest, name, count)
    shown = ("datanode_id", "rack", "version", "health", "op_state", "has_reported")
    nodes = snapshot.nodes.select(*shown).collect()
    check_nodes(nodes)
    check_crowds(snapshot, ("pending_ops",))
    check_pending(snapshot)
    return nodes


def _suspects(snapshot: Snapshot, run: Run, rules: Rules) -> tuple[Snapshot, int]:
    """Return the part of the snapshot that must be judged, and how many replicas it has.

    The health of all other containers is written.
    """
    started_s = time.monotonic()
    manifest, changed = run.manifest, run.request.changed_nodes
    is_direct = not changed and manifest.rows["replicas"] < run.request.direct_rows
    narrow = snapshot.replicas.select(*REPLICA_COLUMNS)  # what is not read need not be decoded
    if changed:
        on_changed = snapshot.replicas.filter(f.col("datanode_id").isin(*changed))
        part = _only(snapshot, on_changed.select("container_id").distinct(), run)
    elif is_direct:
        part = _cached(snapshot)
    else:
        part = _only(replace(snapshot, replicas=narrow), _screened(snapshot, run, rules), run)
    is_proven = not changed and not is_direct
    if not is_proven:  # the screen has counted them
        check_crowds(part, ("replicas",))
    counts = check_rows(part, ("containers", "replicas"), is_proven=is_proven)
    for name, count in counts.items() if is_direct else ():
        check_count(manifest, name, count)
    run.timed("screen", started_s)
    return part, counts["replicas"]


def _screened(snapshot: Snapshot, run: Run, rules: Rules) -> DataFrame:
    """Screen everything, write the plain containers' health, return the suspects' ids.

    One pass writes both, apart by `tier`: the plain rows are their health/ as they stand.
    """
    run.say(f"screening {run.manifest.rows['containers']:,} containers")
    spark = snapshot.containers.sparkSession
    prove_rows(snapshot, ("containers", "replicas"))
    spark.conf.set("spark.sql.maxConcurrentOutputFileWriters", "4")  # else rows are sorted first
    by_numbers = screen_clustered if run.manifest.buckets else screen
    path = run.work / "screen"
    found = by_numbers(snapshot, rules).withColumn("tier", f.col("is_plain").cast("int"))
    plain = found.withColumns(
        {
            "health_state": f.lit(0),
            "flags": f.lit(0).cast("long"),
            "queue": f.lit(QUEUE_NONE),
            "is_qc_stuck": f.lit(False),
            "is_known": f.col("box_count") > 0,
            "snapshot_id": f.lit(run.manifest.snapshot_id),
        }
    )
    plain = plain.select(*HEALTH, "tier")
    plain.write.option("compression", "zstd").partitionBy("tier").parquet(str(path))
    screened = _read(plain, path)
    counted = screened.agg(
        f.coalesce(f.sum("replica_count"), f.lit(0)).alias("replicas"),
        f.count_if("is_known").alias("containers"),
        f.count_if(f.col("container_id").isNull()).alias("nameless"),
        f.max("replica_count").alias("most"),
    ).first()
    assert counted is not None, "an aggregate without groups has one row"
    if (counted["most"] or 0) > ROWS_PER_CONTAINER_MAX:
        check_crowds(snapshot, ("replicas",))
    expected = run.manifest.rows
    rows = (counted["containers"], counted["replicas"])
    if counted["nameless"] or rows != (expected["containers"], expected["replicas"]):
        check_rows(snapshot, ("containers", "replicas"))  # names the rows, if it is they
        for name in ("containers", "replicas"):
            check_count(run.manifest, name, snapshot.table(name).count())
    if (path / "tier=1").is_dir():
        (path / "tier=1").rename(run.work / "health")
    if not (path / "tier=0").is_dir():
        return spark.range(0).select(f.col("id").alias("container_id"))
    return _read(plain.drop("tier"), path / "tier=0").select("container_id")


def _only(snapshot: Snapshot, ids: DataFrame, run: Run) -> Snapshot:
    """Return the rows of the named containers, kept at hand."""
    count = ids.count()
    run.say(f"judging {count:,} containers replica by replica")
    wanted = f.broadcast(ids) if count <= BROADCAST_IDS_MAX else ids
    return _cached(
        replace(
            snapshot,
            containers=snapshot.containers.join(wanted, "container_id", "left_semi"),
            replicas=snapshot.replicas.join(wanted, "container_id", "left_semi"),
            pending_ops=snapshot.pending_ops.join(wanted, "container_id", "left_semi"),
        )
    )


def _cached(part: Snapshot) -> Snapshot:
    return replace(part, containers=part.containers.cache(), replicas=part.replicas.cache())


def judge(snapshot: Snapshot, rules: Rules | None = None) -> DataFrame:
    """Return every container of the snapshot with all that is known and concluded about it."""
    compared = compare(build_cases(snapshot))
    judged = judge_reconcile(judge_health(compared, rules or Rules()))
    return judged.withColumns(
        {
            "violation": violation(),
            "replica_count": f.size("replicas"),
            "snapshot_id": f.lit(snapshot.manifest.snapshot_id),
        }
    )


def _refuse_impossible(judged: DataFrame) -> None:
    rows = (
        judged.filter(f.col("violation").isNotNull())
        .select("container_id", "violation")
        .orderBy("container_id")
        .limit(EXAMPLES_MAX)
        .collect()
    )
    if rows:
        named = ", ".join(f"(container {row['container_id']}: {row['violation']})" for row in rows)
        raise SnapshotRefused(
            f"the tables contradict each other: {named}",
            hint="export the snapshot again from the SCM",
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """What was written about the judged containers, and what was counted on the way."""

    divergent: DataFrame
    reconcile: DataFrame
    actions: DataFrame
    lost: dict[tuple[str, str], int]
    previous: Previous | None


def _planned(judged: DataFrame, run: Run) -> Planned:
    """Write what follows from the judged containers alone: few rows, many expressions."""
    work = run.work
    previous = previous_run(run.request.out, run.manifest, run.run_id)
    divergent = with_attempts(reconcile_plan(judged, **run.stamp()), previous)
    divergent = _kept(divergent, work / "divergent")
    wanted = divergent.filter("NOT is_backed_off").drop("attempts", "is_backed_off")
    wanted = wanted.repartition(1).sortWithinPartitions("priority", "container_id")
    reconcile = _kept(wanted, work / "reconcile_plan")
    _write(replica_classes(judged), work / "replica_class")
    actions = _kept(action_plan(judged, **run.stamp()), work / "plan")
    return Planned(divergent, reconcile, actions, count_lost(judged), previous)


def _conclude(
    snapshot: Snapshot, judged: DataFrame, planned: Planned, nodes: Sequence[Any], run: Run
) -> dict[str, Any]:
    manifest, work = run.manifest, run.work
    volumes = count_volumes(snapshot.replicas, manifest.as_of_ms)
    plan = planned.actions
    if not run.request.changed_nodes and any(v["tree_states"] > v["known"] for v in volumes):
        _write(scan_plan(located_replicas(snapshot), **run.stamp()), work / "plan")
        plan = _read(plan, work / "plan")  # it has more files now
    health = _read(judged.select(*HEALTH), work / "health")
    counts = count_health(health)
    if not run.request.changed_nodes and counts["containers"] != manifest.rows["containers"]:
        raise SnapshotRefused(
            f"{counts['containers']} containers were judged of {manifest.rows['containers']}",
            hint="do its tables lie clustered and sorted as its manifest says?",
        )
    lost = planned.lost
    backed_off = planned.divergent.filter("is_backed_off").select("container_id")
    return {
        **run.stamp(),
        "cluster_id": manifest.cluster_id,
        "term": manifest.term,
        "rows": manifest.rows,
        "inputs": run.inputs,
        "changed_nodes": run.inputs["changed_nodes"],
        "is_partial": bool(run.request.changed_nodes),
        **counts,
        "samples": samples(health, counts),
        "no_progress": [
            row["container_id"]
            for row in backed_off.orderBy("container_id").limit(EXAMPLES_MAX * 20).collect()
        ],
        "plan": count_plan(plan, planned.reconcile),
        "verification_age": verification_ages(volumes),
        "lost_by_volume": [
            {"datanode_id": d, "volume_id": v, "count": n} for (d, v), n in sorted(lost.items())
        ],
        "blame": blame(volumes, lost, list(nodes)),
        "leaving": leaving_nodes(judged, snapshot.nodes, volumes),
        "previous": planned.previous.facts() if planned.previous else None,
    }


def replica_classes(judged: DataFrame) -> DataFrame:
    """Return one row per replica of every judged container: all that the numbers did not clear."""
    replicas = judged.select(
        "container_id",
        "checksum_class",
        "minority",
        "snapshot_id",
        "sequence_id",
        f.col("state").alias("container_state"),
        f.col("qc.vulnerable").alias("vulnerable"),
        f.explode("replicas").alias("r"),
    )
    r = f.col("r")
    stale = (f.col("container_state") == "CLOSED") & (r["state"] == "QUASI_CLOSED")
    is_vulnerable = f.exists("vulnerable", lambda v: v["datanode_id"] == r["datanode_id"])
    role = (
        f.when(is_vulnerable, "VULNERABLE")
        .when(r["state"] == "UNHEALTHY", "UNHEALTHY")
        .when(stale & ~r["bcsid"].eqNullSafe(f.col("sequence_id")), "STALE")
        .when(r["state"] == f.col("container_state"), "MATCHING")
        .otherwise("MISMATCHED")
    )
    shown = ("datanode_id", "replica_index", "volume_id", "state", "root", "tree_algorithm")
    return replicas.select(
        "container_id",
        *[r[name].alias(name) for name in shown],
        r["finding_count"].alias("finding_count"),
        r["is_reachable"].alias("is_reachable"),
        role.alias("role"),
        f.array_contains("minority", r["datanode_id"]).alias("is_minority"),
        "checksum_class",
        "snapshot_id",
    )


def _write(rows: DataFrame, path: Path) -> None:
    rows.write.option("compression", "zstd").mode("append").parquet(str(path))


def _kept(rows: DataFrame, path: Path) -> DataFrame:
    """Write rows and return them as they are read from there."""
    _write(rows, path)
    return _read(rows, path)


def _read(like: DataFrame, path: Path) -> DataFrame:
    """Return the rows at `path`; told what they look like, Spark need not open a file to see."""
    return like.sparkSession.read.schema(like.schema).parquet(str(path))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")


def _result_manifest(run: Run, summary: dict[str, Any]) -> dict[str, object]:
    for step in ("screen", "judged"):
        shutil.rmtree(run.work / step, ignore_errors=True)
    return {
        "result_version": RESULT_VERSION,
        "run_id": run.run_id,
        "snapshot_id": run.manifest.snapshot_id,
        "as_of_ms": run.manifest.as_of_ms,
        "term": run.manifest.term,
        "changed_nodes": run.inputs["changed_nodes"],
        "rows": {
            "health": summary["containers"] + summary["unknown_containers"],
            "reconcile_plan": summary["plan"]["reconcile"]["rows"],
            "plan": sum(p["rows"] for a, p in summary["plan"].items() if a != "reconcile"),
        },
        "seconds": run.seconds,
    }
