"""Runs one verification, from a snapshot to a finished result.

    snapshot ─► checked ─► judged ─► tables of the result, written ─► read back and counted
                                                                          │
             summary.json, report.html, manifest.json, runs/, _SUCCESS ◄──┘

Until the last file is written, readers ignore the rows (see `spark_verify.runs`).
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from health.rules import Rules
from health.words import REACHABLE_HEALTHS
from spark_verify.errors import WorkersApart
from spark_verify.exits import exit_code
from spark_verify.frames import result_frames
from spark_verify.frames.counting import (
    BACKED_OFF,
    RECONCILE,
    REPLICA_CLASS,
    HealthGroup,
    count_actions,
    count_departures,
    count_disagreement,
    count_kinds,
    lowest_ids,
    rows_of,
    sample_ids,
)
from spark_verify.frames.disagreement import compared, disagreement, reported
from spark_verify.frames.facts import Inputs
from spark_verify.frames.previous_run import Previous, divergent_before, previous_run
from spark_verify.frames.result_frames import JudgedContainers, judge_containers
from spark_verify.input_columns import RESULT_VERSION, SAMPLE_MAX
from spark_verify.options import OPTIONS
from spark_verify.report.pages import html_report, text_report
from spark_verify.report.summary import (
    agreement,
    blame,
    count_health,
    count_lost,
    count_plan,
    incomparable,
    leaving_nodes,
    samples,
    verification_ages,
)
from spark_verify.result_tables import RESULTS, RUNS, describe_tables
from spark_verify.runs import (
    RUN,
    SUCCESS,
    TEXTS,
    Attempt,
    attempt_of,
    finished,
    inputs_of,
    remove_left,
    run_id_of,
    table_of,
)
from spark_verify.session import described, open_session
from spark_verify.snapshot.checks import (
    check_age,
    check_changed,
    check_counts,
    check_reporting,
    check_there,
    checked_nodes,
)
from spark_verify.snapshot.manifest import SnapshotManifest, read_manifest
from spark_verify.snapshot.reports import ASSUMED, Reports, open_reports
from spark_verify.snapshot.tables import Snapshot, open_snapshot, parquet_reader, read_rows
from spark_verify.sql_text import casts, local_rows
from spark_verify.storage import Storage, address_of, is_local, spark_path, storage_of
from spark_verify.tasks.judge_batches import nodes_of
from spark_verify.tasks.judge_cases import Case
from spark_verify.tasks.verdict_rows import RunStamp

REPORTING_MIN_PERCENT: Final = 50
"""Percentage of the nodes in service or leaving that must answer. With fewer, silence would look
like data loss.
"""

WRITE_OPTIONS: Final = {
    "compression": "zstd",
    "parquet.page.write-checksum.enabled": "true",
    "maxRecordsPerFile": "0",
}

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """A request to verify a snapshot, reports, or both, and the directory of the result."""

    snapshot: str
    """Path or address; "" if only reports are compared."""
    out: Path | str
    run_id: str = ""
    master: str = ""
    changed_nodes: tuple[str, ...] = ()
    """If not empty, only containers with a replica on one of these nodes are verified."""
    age_max_s: int = 0
    """Maximum age of the snapshot; 0 = unlimited."""
    reporting_min_percent: int = REPORTING_MIN_PERCENT
    """Minimum share of the expected nodes that answer; below it the snapshot is rejected."""
    rules: Rules = field(default_factory=Rules)
    own_rules: Mapping[str, int] = field(default_factory=dict)
    """Rules set by the user; they override the control plane's in the snapshot."""
    sample_max: int = SAMPLE_MAX
    """Maximum container ids listed per kind."""
    reports: str = ""
    """Directory of datanode reports, whose replicas replace those of the snapshot."""
    assumed: Mapping[str, int] = field(
        default_factory=lambda: {name: OPTIONS[name].default for name in ASSUMED}
    )
    """Values of the options in ASSUMED."""


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The location and the summary of a finished run."""

    out: str
    """Directory of the results, in canonical form."""
    attempt: str
    summary: dict[str, Any]

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return str(self.summary["run_id"])

    @property
    def address(self) -> str:
        """Path or address of the run's texts."""
        return f"{self.out}/{RUN}{self.run_id}"

    @property
    def directory(self) -> Path:
        """Local directory of the run's texts."""
        assert is_local(self.out)
        return Path(self.address)

    def table(self, name: str) -> Path:
        """Return the local directory of the run's rows in a table."""
        assert is_local(self.out)
        return Path(table_of(self.out, name, run_id=self.run_id, attempt=self.attempt))


@dataclass(frozen=True, slots=True)
class VerificationRun:
    """A run in progress."""

    spark: SparkSession
    request: VerifyRequest
    source: str
    """Address of the snapshot."""
    reports: Reports | None
    manifest: SnapshotManifest
    inputs: dict[str, Any]
    storage: Storage
    attempt: Attempt
    say: Progress
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def stamp(self) -> RunStamp:
        """Columns that identify this run in rows of the result."""
        return RunStamp(self.manifest.snapshot_id, self.attempt.run_id, self.manifest.as_of_ms)

    def keep(self, name: str, rows: DataFrame) -> DataFrame:
        """Write rows as files of the attempt; return them as read back."""
        address = f"{self.attempt.work}/{name}"
        write(address, rows)
        kept = parquet_reader(self.spark).schema(rows.schema).parquet(spark_path(address))
        if not kept.inputFiles():
            raise apart(self.storage.address, "the driver finds no file that workers wrote")
        return kept

    def begins(self, phase: str, text: str) -> None:
        """Report the start of a phase to the caller and to Spark."""
        self.say(text)
        described(self.spark, text)
        self.seconds[phase] = time.monotonic()

    def ends(self, phase: str) -> None:
        """Record the duration of a phase."""
        self.seconds[phase] = round(time.monotonic() - self.seconds[phase], 3)


def verify(request: VerifyRequest, progress: Progress = lambda _: None) -> VerifyResult:
    """Verify a snapshot and write the result to `out/run_id=<run_id>`.

    Return a finished run unchanged if its input is the same. Raise SnapshotRefused if the snapshot
    is rejected, RunConflict if the run id belongs to a run with other input. After either error,
    nothing is left that looks like a result.
    """
    named = (request.snapshot, request.reports)
    source, place = (address_of(one) if one else "" for one in named)
    out = address_of(request.out)
    spark, now_ms = None, time.time_ns() // 1_000_000
    if place or not (is_local(source) and is_local(out)):
        progress("starting Spark")
        spark = open_session(row_count=0, master=request.master)
    recorded = read_manifest(storage_of(source, spark)) if source else None
    if recorded:
        check_age(recorded, request.age_max_s, now_ms)
    reports = None
    if spark and place:
        progress(f"reading reports in {place}")
        reports = open_reports(
            spark,
            place,
            (source, recorded) if recorded else None,
            assumed=request.assumed,
            age_max_s=request.age_max_s,
            now_ms=now_ms,
        )
    manifest = reports.manifest if reports else recorded
    assert manifest is not None, "a request names a snapshot, reports, or both"
    facts = reports.facts if reports else None
    run_id = run_id_of(request.run_id, manifest, request.changed_nodes, facts)
    inputs = inputs_of(
        manifest,
        changed_nodes=request.changed_nodes,
        rules=replace(request.rules, **request.own_rules),
        own_rules=sorted(request.own_rules),
        reporting_min_percent=request.reporting_min_percent,
        sample_max=request.sample_max,
        reports=facts,
    )
    storage = storage_of(out, spark)
    known = _result(storage, run_id, inputs)
    if known is not None:
        progress(f"run {run_id} is finished already")
        return known
    if spark is None:
        progress("starting Spark")
    rows = sum(manifest.rows.values())
    spark = open_session(row_count=rows, master=request.master)
    attempt = Attempt(out, run_id)
    return _done(
        VerificationRun(
            spark, request, source, reports, manifest, inputs, storage, attempt, progress
        )
    )


def _result(storage: Storage, run_id: str, inputs: Mapping[str, Any]) -> VerifyResult | None:
    summary = finished(storage, run_id, inputs)
    attempt = attempt_of(storage, run_id)
    if summary is None or attempt is None:
        return None
    return VerifyResult(storage.address, attempt, summary)


def _done(run: VerificationRun) -> VerifyResult:
    """Execute a run and commit it."""
    attempt, storage = run.attempt, run.storage
    remove_left(storage)
    try:
        summary = _run(run)
        known = _result(storage, attempt.run_id, run.inputs)
        if known is None:
            _commit(run, summary)
            attempt.end(storage)
            return VerifyResult(storage.address, attempt.name, summary)
    except BaseException:
        attempt.abandon(storage)
        raise
    attempt.abandon(storage)
    run.say(f"run {attempt.run_id} was finished by another process meanwhile")
    return known


def _run(run: VerificationRun) -> dict[str, Any]:
    manifest, request = run.manifest, run.request
    run.begins("open", f"reading snapshot {manifest.snapshot_id}")
    snapshot, differing = _opened(run)
    nodes = checked_nodes(snapshot.nodes, manifest)
    check_there(manifest, snapshot)
    check_changed(nodes, request.changed_nodes)
    silent = run.reports.silent if run.reports else {}
    named = [n | {"datanode_id": silent.get(n["datanode_id"], n["datanode_id"])} for n in nodes]
    check_reporting(named, request.reporting_min_percent)
    racks = {node["rack"] for node in nodes if node["health"] != "DEAD"}
    chosen = manifest.rules | dict(request.own_rules)
    rules = replace(request.rules, **chosen | {"rack_count": max(len(racks), 1)})
    inputs = Inputs(snapshot, manifest, nodes, rules, request.changed_nodes)
    versions = tuple(node["version"] for node in nodes)
    case = Case(nodes_of(pa.Table.from_pylist(nodes)), rules, run.stamp, versions)
    run.ends("open")
    counts = f"{manifest.rows['containers']:,} containers, {manifest.rows['replicas']:,} replicas"
    run.begins("judge", f"judging {counts}")
    judged = judge_containers(run.spark, inputs, case, run.keep)
    run.ends("judge")
    run.begins("write", "writing tables")
    previous = previous_run(run.storage, manifest, run.attempt.run_id)
    written = _write_tables(run, judged, _before(run, previous), differing)
    run.ends("write")
    run.begins("conclude", "concluding")
    summary = _conclude(run, judged, written, previous)
    run.ends("conclude")
    summary["rules"] = asdict(rules)
    summary["exit_code"] = int(exit_code(summary))
    summary["text_report"] = text_report(summary)
    return summary


def _opened(run: VerificationRun) -> tuple[Snapshot, DataFrame]:
    """Return the tables to judge, and the rows of `disagreement/`."""
    reports = run.reports
    if reports is None or reports.recorded is None:
        snapshot = reports.snapshot if reports else open_snapshot(run.spark, run.source)
        return snapshot, local_rows(run.spark, RESULTS["disagreement"].schema, [])
    snapshot, manifest = reports.recorded
    both = run.keep("both", compared(snapshot.replicas, reports.snapshot.replicas))
    check_counts(manifest, {"replicas": both.filter("recorded IS NOT NULL").count()})
    return replace(reports.snapshot, replicas=reported(both)), disagreement(both, reports)


def _before(run: VerificationRun, previous: Previous | None) -> DataFrame | None:
    before, damage = divergent_before(run.spark, run.storage, previous, run.keep)
    if previous is not None and damage:
        run.say(f"run {previous.run_id} cannot be read, attempts begin again: {damage}")
    return before


@dataclass(frozen=True, slots=True)
class WrittenTables:
    """The tables of a run, read back from their files."""

    tables: dict[str, DataFrame]
    volumes: list[dict[str, Any]]
    votes: list[dict[str, Any]]


def _write_tables(
    run: VerificationRun, judged: JudgedContainers, before: DataFrame | None, differing: DataFrame
) -> WrittenTables:
    """Write the rows of all tables except `runs`."""
    tables: dict[str, DataFrame] = {}

    def add(name: str, rows: DataFrame) -> DataFrame:
        described(run.spark, f"writing {name}/")
        schema, address = RESULTS[name].schema, run.attempt.table(name)
        write(address, rows.selectExpr(*casts(schema)))
        tables[name] = read_rows(run.spark, schema, address)
        return tables[name]

    volumes = add("volumes", result_frames.volumes(judged))
    counted = rows_of(volumes)
    add("votes", result_frames.votes(judged, volumes))
    add("health", result_frames.health(judged))
    add("replica_class", result_frames.replica_class(judged))
    divergent = add("divergent", result_frames.divergent(judged, before))
    add("reconcile_plan", result_frames.reconcile_rows(divergent))
    scan_count, tree_count = (sum(v[name] for v in counted) for name in ("scans", "in_tree"))
    silent = _silent(judged)
    add("plan", result_frames.plan(judged, silent, scan_count=scan_count, tree_count=tree_count))
    add("disagreement", differing)
    return WrittenTables(tables, counted, rows_of(tables["votes"]))


def _silent(judged: JudgedContainers) -> list[str]:
    """Return the unreachable datanodes, which cannot receive scan commands."""
    nodes = judged.inputs.nodes
    return [n["datanode_id"] for n in nodes if n["health"] not in REACHABLE_HEALTHS]


def write(address: str, rows: DataFrame) -> None:
    """Write rows as a directory of Parquet files."""
    rows.write.options(**WRITE_OPTIONS).mode("overwrite").parquet(spark_path(address))


def _conclude(
    run: VerificationRun,
    judged: JudgedContainers,
    written: WrittenTables,
    previous: Previous | None,
) -> dict[str, Any]:
    """Return the summary of the run, computed from its written tables."""
    manifest, nodes, sample_max = run.manifest, judged.inputs.nodes, run.request.sample_max
    tables, volumes, votes = written.tables, written.volumes, written.votes
    kinds = count_kinds(tables["health"])
    actions = count_actions(tables)
    _check_written(run, judged, kinds, actions)
    ids = sample_ids(tables["health"], sample_max) if any(map(_has_sample, kinds)) else {}
    backed_off = actions.get(BACKED_OFF, (0, 0))[0]
    off = tables["divergent"].filter("is_backed_off").selectExpr("container_id", "action AS label")
    is_partial = bool(run.request.changed_nodes)
    silent = set(_silent(judged))
    wanting = [v for v in volumes if v["datanode_id"] not in silent and not is_partial]
    scan = (sum(v["scans"] for v in wanting), sum(v["scan_bytes"] for v in wanting))
    is_leaving = any(node["op_state"] != "IN_SERVICE" for node in nodes)
    return {
        **asdict(run.stamp),
        "cluster_id": manifest.cluster_id,
        "term": manifest.term,
        "rows": manifest.rows,
        "inputs": run.inputs,
        "changed_nodes": run.inputs["changed_nodes"],
        "is_partial": is_partial,
        **count_health(kinds),
        "samples": samples(ids),
        "incomparable": incomparable(kinds, ids),
        "divergent": backed_off + actions.get(RECONCILE, (0, 0))[0],
        "backed_off": backed_off,
        "no_progress": lowest_ids(off, sample_max)[RECONCILE] if backed_off else [],
        "plan": count_plan(actions, scan),
        "scans_listed": actions.get("scan", (0, 0))[0],
        "verification_age": verification_ages(volumes),
        "lost_by_volume": count_lost(votes),
        "blame": blame(votes, nodes),
        "leaving": leaving_nodes(
            count_departures(judged.cases) if is_leaving else {}, nodes, volumes
        ),
        "agreement": agreement(kinds, ids),
        "reports": run.inputs["reports"],
        **count_disagreement(tables["disagreement"]),
        "keys_at_risk": asdict(manifest.keys_at_risk) if manifest.keys_at_risk else None,
        "previous": previous.facts() if previous else None,
    }


def _has_sample(kind: HealthGroup) -> bool:
    return bool(kind.flags or kind.why_not_compared or kind.disagreement)


def _check_written(
    run: VerificationRun,
    judged: JudgedContainers,
    kinds: list[HealthGroup],
    actions: Mapping[str, tuple[int, int]],
) -> None:
    """Raise WorkersApart if rows are missing, because workers that do not share the directory write
    to their own disks.
    """
    counted = {
        "health": sum(kind.count for kind in kinds),
        "replica_class": actions.get(REPLICA_CLASS, (0, 0))[0],
        "divergent": sum(actions.get(name, (0, 0))[0] for name in (RECONCILE, BACKED_OFF)),
    }
    for name, count in counted.items():
        if count != judged.counts[name]:
            raise apart(
                run.storage.address,
                f"table {name}/ has {count} rows, {judged.counts[name]} were written",
            )


def apart(address: str, fact: str) -> WorkersApart:
    """Return the error for rows that the driver cannot find."""
    return WorkersApart(
        f"workers do not see {address}: {fact}", hint="it must be shared by all, or in a store"
    )


def _commit(run: VerificationRun, summary: dict[str, Any]) -> None:
    """Commit the attempt as the finished run."""
    attempt, storage = run.attempt, run.storage
    described(run.spark, "writing runs/")
    describe_tables(storage)
    told = _result_manifest(run, summary)
    texts = json.dumps(summary, indent=2), html_report(summary), json.dumps(told, indent=2)
    for name, text in zip(TEXTS, texts, strict=True):
        storage.write_text(f"{RUN}{attempt.run_id}/{name}", text + "\n")
    schema = RESULTS[RUNS].schema
    known = summary["inputs"] | summary | {"replicas": summary["rows"]["replicas"]}
    known["attempt"] = attempt.name
    row = local_rows(run.spark, schema, [[known[name] for name in schema.names]])
    write(attempt.table(RUNS), row.coalesce(1))
    storage.write_text(f"{RUN}{attempt.run_id}/{SUCCESS}", attempt.name)


def _result_manifest(run: VerificationRun, summary: dict[str, Any]) -> dict[str, object]:
    plan = {action: p["rows"] for action, p in summary["plan"].items()}
    return {
        "result_version": RESULT_VERSION,
        "run_id": run.attempt.run_id,
        "attempt": run.attempt.name,
        "snapshot_id": run.manifest.snapshot_id,
        "as_of_ms": run.manifest.as_of_ms,
        "term": run.manifest.term,
        "changed_nodes": run.inputs["changed_nodes"],
        "reports": run.inputs["reports"],
        "rows": {
            "health": summary["containers"] + summary["unknown_containers"],
            "reconcile_plan": plan[RECONCILE],
            "plan": summary["scans_listed"]
            + sum(rows for action, rows in plan.items() if action not in (RECONCILE, "scan")),
        },
        "seconds": run.seconds,
    }
