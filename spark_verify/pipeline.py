"""One verification from snapshot to finished result.

    snapshot ─► screen ─► plain ────────────────► health/
                   └────► suspects ─► the judge ─┬► health/  replica_class/
                                                 ├► reconcile_plan/  divergent/
                                                 ├► plan/
                                                 └► tallies: what the driver need not count again
    and from all of it: summary.json, report.html, manifest.json, at last _SUCCESS

Everything is written to a hidden directory beside the target and renamed when it is whole.
"""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from health.rules import Rules
from health.words import QUEUES, Queue
from spark_verify.batches import nodes_of
from spark_verify.errors import SnapshotRefused
from spark_verify.history import Previous, previous_run, with_attempts
from spark_verify.judging import PARTS, Case, Found, judged, judged_here
from spark_verify.manifest import Manifest, read_manifest
from spark_verify.plans import scan_plan, silent_nodes
from spark_verify.report import render
from spark_verify.results import Rows, kept, lowest, ordered, read, split, total, write
from spark_verify.rows import DIVERGENT, HEALTH, JUDGED, RESULT_VERSION, ROWS_PER_CONTAINER_MAX
from spark_verify.runs import finished, inputs_of, run_id_of, work_directory
from spark_verify.screen import screen, screen_clustered
from spark_verify.session import open_session
from spark_verify.snapshot import (
    EXAMPLES_MAX,
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
    checked_ops,
    close_snapshot,
    open_snapshot,
    prove_rows,
    refuse_rows,
    refuse_twice,
    whole_table,
)
from spark_verify.summary import (
    Kind,
    agreement,
    blame,
    count_health,
    count_lost,
    count_plan,
    count_volumes,
    exit_code,
    judged_kinds,
    leaving_nodes,
    samples,
    text_report,
    verification_ages,
)
from spark_verify.tallies import Tallies, collected
from spark_verify.verdict_rows import Stamp

DIRECT_ROWS: Final = 50_000
"""Replica rows below which the screen costs more than it saves: all are judged."""

HERE_ROWS: Final = 1_000_000
"""Replica rows of suspects up to which this process judges them: a second for the judge, 200 MB,
and less than it takes to start Spark's workers."""

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
    here_rows: int = HERE_ROWS


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

    @property
    def stamp(self) -> Stamp:
        """What rows of the result say of this run."""
        return Stamp(self.manifest.snapshot_id, self.run_id, self.manifest.as_of_ms)

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
    table = whole_table(snapshot, "nodes")
    nodes = table.to_pylist()
    check_nodes(nodes)
    ops = checked_ops(snapshot, nodes)
    check_changed(nodes, run.request.changed_nodes)
    check_reporting(nodes, run.request.reporting_min_percent)
    racks = {node["rack"] for node in nodes if node["health"] != "DEAD"}
    rules = replace(run.request.rules, **manifest.rules | {"rack_count": max(len(racks), 1)})
    case = Case(nodes_of(table), rules, run.stamp, manifest)
    part, plain = _suspects(snapshot, ops, run, rules)
    started_s = time.monotonic()
    found = _judged(part, case, run)
    _refuse_impossible(part, found.tallies)
    _check_counts(snapshot, part, found.tallies, run)
    write(found.tables["health"], run.work / "health")
    run.timed("judge", started_s)
    run.say("planning")
    started_s = time.monotonic()
    kinds = [*judged_kinds(found.tallies), *plain]
    summary = _conclude(snapshot, part, found, kinds, nodes, run)
    run.timed("conclude", started_s)
    summary["rules"] = asdict(rules)
    summary["exit_code"] = exit_code(summary)
    summary["text_report"] = text_report(summary)
    _write_text(run.work / "summary.json", json.dumps(summary, indent=2))
    _write_text(run.work / "report.html", render(summary))
    _write_text(run.work / "manifest.json", json.dumps(_result_manifest(run, summary), indent=2))
    return summary


@dataclass(frozen=True, slots=True)
class Part:
    """What of a snapshot must be judged."""

    snapshot: Snapshot
    containers: int
    """Ids of containers, also of those that only replicas name."""
    replicas: int
    here: dict[str, pa.Table] | None = None
    """Its tables where they are so small that this process judges them."""


def _suspects(snapshot: Snapshot, ops: pa.Table, run: Run, rules: Rules) -> tuple[Part, list[Kind]]:
    """Return the part of the snapshot that must be judged, and what of it is plain.

    The health of all other containers is written.
    """
    started_s = time.monotonic()
    plain: list[Kind] = []
    if run.request.changed_nodes:
        part = _of_changed_nodes(snapshot, run)
    elif run.manifest.rows["replicas"] < run.request.direct_rows:
        part = _whole(snapshot, ops)
    else:
        part, plain = _screened(snapshot, run, rules)
    run.say(f"judging {part.containers:,} containers replica by replica")
    run.timed("screen", started_s)
    return part, plain


def _whole(snapshot: Snapshot, ops: pa.Table) -> Part:
    """Return all of a small snapshot."""
    tables = {name: whole_table(snapshot, name) for name in ("containers", "replicas")}
    columns = [table["container_id"] for table in tables.values()]
    ids = pc.unique(pa.chunked_array([chunk for column in columns for chunk in column.chunks]))
    crowds = pc.value_counts(tables["replicas"]["container_id"]).field("counts")
    if (pc.max(crowds).as_py() or 0) > ROWS_PER_CONTAINER_MAX:
        check_crowds(snapshot, ("replicas",))
    if not pc.all(pc.is_in(ops["container_id"], ids)).as_py():
        check_pending(snapshot)
    return Part(snapshot, len(ids), tables["replicas"].num_rows, tables | {"pending_ops": ops})


def _of_changed_nodes(snapshot: Snapshot, run: Run) -> Part:
    """Return the containers with a replica on one of the changed nodes."""
    prove_rows(snapshot, ("containers", "replicas"))
    check_pending(snapshot)
    on_changed = snapshot.replicas.filter(f.col("datanode_id").isin(*run.request.changed_nodes))
    ids = on_changed.select("container_id").distinct()
    count = ids.count()
    part = _only(snapshot, ids, count)
    check_crowds(part, ("replicas",))
    return Part(part, count, part.replicas.count())


def _screened(snapshot: Snapshot, run: Run, rules: Rules) -> tuple[Part, list[Kind]]:
    """Screen everything, write the plain containers' health, return what is suspect.

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
            "queue": f.lit(QUEUES[Queue.NONE]),
            "is_qc_stuck": f.lit(False),
            "is_known": f.col("box_count") > 0,
            "snapshot_id": f.lit(run.manifest.snapshot_id),
        }
    )
    plain = plain.select(*HEALTH.names, "tier")
    plain.write.option("compression", "zstd").partitionBy("tier").parquet(str(path))
    kinds, suspects = _check_screened(snapshot, read(plain, path), run.manifest)
    if (path / "tier=1").is_dir():
        (path / "tier=1").rename(run.work / "health")
    ids = spark.range(0).withColumnRenamed("id", "container_id")
    if (path / "tier=0").is_dir():
        ids = read(plain.drop("tier"), path / "tier=0").select("container_id")
    return Part(_only(snapshot, ids, suspects[0]), *suspects), kinds


def _check_screened(
    snapshot: Snapshot, screened: DataFrame, manifest: Manifest
) -> tuple[list[Kind], tuple[int, int]]:
    """Return how many plain containers there are of each kind, and how many containers and replicas
    are left to the judge; refuse when rows are missing."""
    groups = (
        screened.groupBy("tier", "state", "checksum_class", "is_known")
        .agg(
            f.count(f.lit(1)).alias("containers"),
            f.coalesce(f.sum("replica_count"), f.lit(0)).alias("replicas"),
            f.count_if(f.col("container_id").isNull()).alias("nameless"),
            f.max("replica_count").alias("most"),
        )
        .collect()
    )
    if max((row["most"] or 0 for row in groups), default=0) > ROWS_PER_CONTAINER_MAX:
        check_crowds(snapshot, ("replicas",))
    rows = {
        "containers": sum(row["containers"] for row in groups if row["is_known"]),
        "replicas": sum(row["replicas"] for row in groups),
    }
    if any(row["nameless"] for row in groups) or any(
        count != manifest.rows[name] for name, count in rows.items()
    ):
        check_rows(snapshot, ("containers", "replicas"))  # names the rows, if it is they
        for name in rows:
            check_count(manifest, name, snapshot.table(name).count())
    plain = [
        Kind(row["state"], 0, False, 0, row["checksum_class"], True, row["containers"])
        for row in groups
        if row["tier"] == 1
    ]
    left = [row for row in groups if row["tier"] == 0]
    return plain, (sum(r["containers"] for r in left), sum(r["replicas"] for r in left))


def _only(snapshot: Snapshot, ids: DataFrame, count: int) -> Snapshot:
    """Return the rows of the named containers, and of a replica only what is judged."""
    wanted = f.broadcast(ids) if count <= BROADCAST_IDS_MAX else ids
    containers, replicas, ops = (
        snapshot.table(name)
        .select(*[c.name for c in columns])
        .join(wanted, "container_id", "left_semi")
        for name, columns in PARTS.items()
    )
    return replace(snapshot, containers=containers, replicas=replicas, pending_ops=ops)


def _judged(part: Part, case: Case, run: Run) -> Found:
    """Return what the judge finds: in this process if there is little to judge, else in tasks."""
    if part.here is not None:
        return judged_here(part.here, case)
    if part.replicas <= run.request.here_rows:
        return judged_here({name: part.snapshot.table(name).toArrow() for name in PARTS}, case)
    # Read back: what follows asks several things of it.
    rows = kept(judged(part.snapshot, case), run.work / "judged")
    tallies = collected(rows.filter("tallies IS NOT NULL").select("tallies").collect())
    tables = {name: rows.filter(f"{name} IS NOT NULL").select(f"{name}.*") for name in JUDGED}
    return Found(dict(tables), tallies)


def _refuse_impossible(part: Part, tallies: Tallies) -> None:
    """Refuse a snapshot of which a row is impossible, or whose tables contradict each other."""
    if names := [name for (name,) in tallies.of("impossible")]:
        refuse_rows(part.snapshot, names, is_proven=True)
    for key in tallies.of("twice"):
        ids = tallies.ids("twice", key)[:EXAMPLES_MAX]
        refuse_twice("containers", [f"container_id {container_id}" for container_id in ids])
    wrong = [
        (container_id, text)
        for (text,) in tallies.of("violation")
        for container_id in tallies.ids("violation", (text,))
    ]
    if wrong:
        named = ", ".join(f"(container {i}: {text})" for i, text in sorted(wrong)[:EXAMPLES_MAX])
        raise SnapshotRefused(
            f"the tables contradict each other: {named}",
            hint="export the snapshot again from the SCM",
        )


def _check_counts(snapshot: Snapshot, part: Part, tallies: Tallies, run: Run) -> None:
    """Refuse when the judge was not shown every row that was to be judged."""
    _, replicas, ops = tallies.of("rows").get((), [0, 0, 0])
    containers = sum(count for (count,) in tallies.of("health").values())
    if not run.request.changed_nodes and ops != run.manifest.rows["pending_ops"]:
        check_pending(snapshot)
    if (containers, replicas) != (part.containers, part.replicas):
        raise SnapshotRefused(
            f"{containers} containers and {replicas} replicas were judged of "
            f"{part.containers} and {part.replicas}",
            hint="did the files of the snapshot change while it was read?",
        )


def _conclude(
    snapshot: Snapshot, part: Part, found: Found, kinds: list[Kind], nodes: list[Any], run: Run
) -> dict[str, Any]:
    """Write what follows from the judged containers, and return the run in numbers."""
    manifest, work, tallies = run.manifest, run.work, found.tallies
    replicas = snapshot.replicas if part.here is None else part.here["replicas"]
    previous = previous_run(run.request.out, manifest, run.run_id)
    backed_off, reconcile = _write_reconciles(snapshot, found.tables["divergent"], previous, run)
    write(found.tables["replica_class"], work / "replica_class")
    volumes = count_volumes(replicas, manifest.as_of_ms)
    silent = silent_nodes(nodes)
    wanting = [v for v in volumes if v["scans"] and v["datanode_id"] not in silent]
    if run.request.changed_nodes:
        wanting = []
    plan = found.tables["plan"]
    if wanting:
        scans = scan_plan(replicas, silent, run.stamp)
        if isinstance(scans, pa.Table):
            plan = pa.concat_tables([plan, scans])
        else:
            write(scans, work / "plan")
    write(ordered(plan, "priority", "container_id", "action"), work / "plan")
    scan = (sum(v["scans"] for v in wanting), sum(v["scan_bytes"] for v in wanting))
    counts = count_health(kinds)
    if not run.request.changed_nodes and counts["containers"] != manifest.rows["containers"]:
        raise SnapshotRefused(
            f"{counts['containers']} containers were judged of {manifest.rows['containers']}",
            hint="do its tables lie clustered and sorted as its manifest says?",
        )
    lost = count_lost(tallies)
    return {
        **asdict(run.stamp),
        "cluster_id": manifest.cluster_id,
        "term": manifest.term,
        "rows": manifest.rows,
        "inputs": run.inputs,
        "changed_nodes": run.inputs["changed_nodes"],
        "is_partial": bool(run.request.changed_nodes),
        **counts,
        "samples": samples(kinds),
        "no_progress": backed_off,
        "plan": count_plan(tallies, reconcile, scan),
        "verification_age": verification_ages(volumes),
        "lost_by_volume": [
            {"datanode_id": d, "volume_id": v, "count": n} for (d, v), n in sorted(lost.items())
        ],
        "blame": blame(volumes, lost, nodes),
        "leaving": leaving_nodes(tallies, nodes, volumes),
        "agreement": agreement(tallies, _compared(snapshot, tallies, kinds)),
        "previous": previous.facts() if previous else None,
    }


def _compared(snapshot: Snapshot, tallies: Tallies, kinds: list[Kind]) -> int:
    """Return of how many containers the control plane said how they are."""
    if len(kinds) == len(judged_kinds(tallies)):
        return tallies.of("compared").get((), [0])[0]
    # Plain ones were not shown to the judge; that they are HEALTHY is what both said.
    return snapshot.containers.filter(f.col("health_state").isNotNull()).count()


def _write_reconciles(
    snapshot: Snapshot, divergent: Rows, previous: Previous | None, run: Run
) -> tuple[list[int], tuple[int, int] | None]:
    """Write `divergent/` and `reconcile_plan/`; return some that are backed off, and the rows and
    bytes that are left, None when nothing is backed off."""
    if previous is not None:
        divergent = with_attempts(divergent, previous, snapshot.nodes.sparkSession)
    off, wanted = split(kept(divergent, run.work / "divergent"), "is_backed_off")
    wanted = wanted.select([c for c in DIVERGENT.names if c not in ("attempts", "is_backed_off")])
    if isinstance(wanted, DataFrame):
        wanted = wanted.repartition(1)
    write(ordered(wanted, "priority", "container_id"), run.work / "reconcile_plan")
    if previous is None:
        return [], None
    return lowest(off, "container_id", EXAMPLES_MAX * 20), total(wanted, "bytes_estimated")


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
