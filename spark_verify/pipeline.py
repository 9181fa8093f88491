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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from health.rules import Rules
from health.words import QUEUES, Queue
from spark_verify.batches import nodes_of
from spark_verify.errors import SnapshotRefused
from spark_verify.history import Previous, previous_run, with_attempts
from spark_verify.judging import JUDGED_REPLICA_COLUMNS, judged
from spark_verify.plans import action_plan, reconcile_plan, replica_classes, scan_plan
from spark_verify.report import render
from spark_verify.rows import HEALTH, RESULT_VERSION, ROWS_PER_CONTAINER_MAX
from spark_verify.runs import finished, inputs_of, run_id_of, work_directory
from spark_verify.screen import screen, screen_clustered
from spark_verify.session import open_session
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
    refuse_twice,
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
    nodes = _checked_nodes(snapshot)
    rows = nodes.to_pylist()
    check_changed(rows, run.request.changed_nodes)
    check_reporting(rows, run.request.reporting_min_percent)
    racks = {node["rack"] for node in rows if node["health"] != "DEAD"}
    rules = replace(run.request.rules, **manifest.rules | {"rack_count": max(len(racks), 1)})
    part, plain = _suspects(snapshot, run, rules)
    started_s = time.monotonic()
    # Read back: what follows asks several things of it.
    found = _kept(judged(part.snapshot, nodes_of(nodes), rules), run.work / "judged")
    for table in (part.snapshot.containers, part.snapshot.replicas) if part.is_cached else ():
        table.unpersist()
    tallies = collected(found.filter("container_id IS NULL").select("tallies").collect())
    _refuse_impossible(tallies)
    _check_counts(tallies, part)
    found = found.filter("container_id IS NOT NULL")
    stamped = found.withColumn("snapshot_id", f.lit(manifest.snapshot_id))
    _write(stamped.select(*HEALTH), run.work / "health")
    run.timed("judge", started_s)
    run.say("planning")
    started_s = time.monotonic()
    kinds = [*judged_kinds(tallies), *plain]
    summary = _conclude(snapshot, Found(found, tallies, kinds, rows), run)
    run.timed("conclude", started_s)
    summary["rules"] = asdict(rules)
    summary["exit_code"] = exit_code(summary)
    summary["text_report"] = text_report(summary)
    _write_text(run.work / "summary.json", json.dumps(summary, indent=2))
    _write_text(run.work / "report.html", render(summary))
    _write_text(run.work / "manifest.json", json.dumps(_result_manifest(run, summary), indent=2))
    return summary


def _checked_nodes(snapshot: Snapshot) -> pa.Table:
    """Check nodes and pending ops whole, and return the nodes."""
    for name, count in check_rows(snapshot, ("nodes", "pending_ops")).items():
        check_count(snapshot.manifest, name, count)
    shown = ("datanode_id", "rack", "version", "health", "op_state", "has_reported")
    nodes: pa.Table = snapshot.nodes.select(*shown).toArrow()
    check_nodes(nodes.to_pylist())
    check_crowds(snapshot, ("pending_ops",))
    check_pending(snapshot)
    return nodes


@dataclass(frozen=True, slots=True)
class Part:
    """What of a snapshot must be judged; `rows` is how many containers and replicas that is."""

    snapshot: Snapshot
    rows: dict[str, int]
    is_cached: bool


def _suspects(snapshot: Snapshot, run: Run, rules: Rules) -> tuple[Part, list[Kind]]:
    """Return the part of the snapshot that must be judged, and what of it is plain.

    The health of all other containers is written.
    """
    started_s = time.monotonic()
    manifest, changed = run.manifest, run.request.changed_nodes
    is_direct = not changed and manifest.rows["replicas"] < run.request.direct_rows
    narrow = snapshot.replicas.select(*JUDGED_REPLICA_COLUMNS)  # the rest need not be decoded
    plain: list[Kind] = []
    part = snapshot
    if changed:
        on_changed = snapshot.replicas.filter(f.col("datanode_id").isin(*changed))
        part = _only(snapshot, on_changed.select("container_id").distinct(), run)
    elif not is_direct:
        ids, plain = _screened(snapshot, run, rules)
        part = _only(replace(snapshot, replicas=narrow), ids, run)
    is_proven = not changed and not is_direct
    if not is_proven:  # the screen has counted them
        check_crowds(part, ("replicas",))
    counts = check_rows(part, ("containers", "replicas"), is_proven=is_proven)
    for name, count in counts.items() if is_direct else ():
        check_count(manifest, name, count)
    run.timed("screen", started_s)
    return Part(part, counts, is_cached=not is_direct), plain


def _screened(snapshot: Snapshot, run: Run, rules: Rules) -> tuple[DataFrame, list[Kind]]:
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
            "queue": f.lit(QUEUES[Queue.NONE]),
            "is_qc_stuck": f.lit(False),
            "is_known": f.col("box_count") > 0,
            "snapshot_id": f.lit(run.manifest.snapshot_id),
        }
    )
    plain = plain.select(*HEALTH, "tier")
    plain.write.option("compression", "zstd").partitionBy("tier").parquet(str(path))
    kinds = _check_screened(snapshot, _read(plain, path), run.manifest)
    if (path / "tier=1").is_dir():
        (path / "tier=1").rename(run.work / "health")
    if not (path / "tier=0").is_dir():
        return spark.range(0).select(f.col("id").alias("container_id")), kinds
    return _read(plain.drop("tier"), path / "tier=0").select("container_id"), kinds


def _check_screened(snapshot: Snapshot, screened: DataFrame, manifest: Manifest) -> list[Kind]:
    """Return how many plain containers there are of each kind; refuse when rows are missing."""
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
    return [
        Kind(row["state"], 0, False, 0, row["checksum_class"], True, row["containers"])
        for row in groups
        if row["tier"] == 1
    ]


def _only(snapshot: Snapshot, ids: DataFrame, run: Run) -> Snapshot:
    """Return the rows of the named containers, kept at hand."""
    count = ids.count()
    run.say(f"judging {count:,} containers replica by replica")
    wanted = f.broadcast(ids) if count <= BROADCAST_IDS_MAX else ids
    containers, replicas, ops = (
        snapshot.table(name).join(wanted, "container_id", "left_semi")
        for name in ("containers", "replicas", "pending_ops")
    )
    return replace(
        snapshot, containers=containers.cache(), replicas=replicas.cache(), pending_ops=ops
    )


def _refuse_impossible(tallies: Tallies) -> None:
    """Refuse a snapshot whose tables contradict each other."""
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


def _check_counts(tallies: Tallies, part: Part) -> None:
    """Refuse when the judge was not shown every row that was to be judged."""
    containers, replicas, _ = tallies.of("rows").get((), [0, 0, 0])
    if (containers, replicas) != (part.rows["containers"], part.rows["replicas"]):
        raise SnapshotRefused(
            f"{containers} containers and {replicas} replicas were judged of "
            f"{part.rows['containers']} and {part.rows['replicas']}",
            hint="did the files of the snapshot change while it was read?",
        )


@dataclass(frozen=True, slots=True)
class Found:
    """What the judge found: its rows, what was counted of them, and the nodes."""

    judged: DataFrame
    tallies: Tallies
    kinds: list[Kind]
    nodes: list[dict[str, Any]]


def _conclude(snapshot: Snapshot, found: Found, run: Run) -> dict[str, Any]:
    """Write what follows from the judged containers, and return the run in numbers."""
    manifest, work, tallies = run.manifest, run.work, found.tallies
    previous = previous_run(run.request.out, manifest, run.run_id)
    backed_off, reconcile = _write_reconciles(found.judged, previous, run)
    classes = replica_classes(found.judged, snapshot_id=manifest.snapshot_id)
    _write(classes, work / "replica_class")
    _write(action_plan(found.judged, **run.stamp()), work / "plan")
    volumes = count_volumes(snapshot.replicas, manifest.as_of_ms)
    scan = (0, 0)
    if not run.request.changed_nodes and any(v["tree_states"] > v["known"] for v in volumes):
        scans = _kept(scan_plan(snapshot, **run.stamp()), work / "scans")
        row = scans.agg(f.count(f.lit(1)), f.coalesce(f.sum("bytes_estimated"), f.lit(0))).first()
        assert row is not None, "an aggregate without groups has one row"
        scan = (row[0], row[1])
        _join_files(work / "scans", work / "plan")
    counts = count_health(found.kinds)
    if not run.request.changed_nodes and counts["containers"] != manifest.rows["containers"]:
        raise SnapshotRefused(
            f"{counts['containers']} containers were judged of {manifest.rows['containers']}",
            hint="do its tables lie clustered and sorted as its manifest says?",
        )
    lost = count_lost(tallies)
    return {
        **run.stamp(),
        "cluster_id": manifest.cluster_id,
        "term": manifest.term,
        "rows": manifest.rows,
        "inputs": run.inputs,
        "changed_nodes": run.inputs["changed_nodes"],
        "is_partial": bool(run.request.changed_nodes),
        **counts,
        "samples": samples(found.kinds),
        "no_progress": backed_off,
        "plan": count_plan(tallies, reconcile, scan),
        "verification_age": verification_ages(volumes),
        "lost_by_volume": [
            {"datanode_id": d, "volume_id": v, "count": n} for (d, v), n in sorted(lost.items())
        ],
        "blame": blame(volumes, lost, found.nodes),
        "leaving": leaving_nodes(tallies, found.nodes, volumes),
        "agreement": agreement(tallies, _compared(snapshot, found)),
        "previous": previous.facts() if previous else None,
    }


def _compared(snapshot: Snapshot, found: Found) -> int:
    """Return of how many containers the control plane said how they are."""
    if len(found.kinds) == len(judged_kinds(found.tallies)):
        return found.tallies.of("compared").get((), [0])[0]
    # Plain ones were not shown to the judge; that they are HEALTHY is what both said.
    return snapshot.containers.filter(f.col("health_state").isNotNull()).count()


def _write_reconciles(
    judged_rows: DataFrame, previous: Previous | None, run: Run
) -> tuple[list[int], tuple[int, int] | None]:
    """Write `divergent/` and `reconcile_plan/`; return some that are backed off, and the rows and
    bytes that are left, None when nothing is backed off."""
    plan = reconcile_plan(judged_rows, **run.stamp())
    divergent = _kept(with_attempts(plan, previous), run.work / "divergent")
    wanted = divergent.filter("NOT is_backed_off").drop("attempts", "is_backed_off")
    _write(
        wanted.repartition(1).sortWithinPartitions("priority", "container_id"),
        run.work / "reconcile_plan",
    )
    if previous is None:
        return [], None
    off = divergent.filter("is_backed_off").select("container_id")
    first = off.orderBy("container_id").limit(EXAMPLES_MAX * 20).collect()
    left = wanted.agg(f.count(f.lit(1)), f.coalesce(f.sum("bytes_estimated"), f.lit(0))).first()
    assert left is not None, "an aggregate without groups has one row"
    return [row["container_id"] for row in first], (left[0], left[1])


def _join_files(source: Path, target: Path) -> None:
    """Move the files of one table beside those of another."""
    for file in source.glob("*.parquet"):
        file.rename(target / file.name)
    shutil.rmtree(source)


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
