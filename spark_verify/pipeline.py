"""Executes one verification, from a snapshot to a finished result.

    snapshot ─► checked ─► judged ─► tables of the result, written ─► read back and counted
                                                                          │
             summary.json, report.html, manifest.json, runs/, _SUCCESS ◄──┘

Readers ignore the rows of a run until its last file is written (see `spark_verify.runs`).
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from health.blame import suspects
from health.rules import Rules
from health.tables.snapshot_columns import RESULT_VERSION
from spark_verify import runs
from spark_verify.errors import FAILURES, WorkersApart, describe_error
from spark_verify.frames import counting, result_frames
from spark_verify.frames.disagreement import compared, disagreement, reported
from spark_verify.frames.facts import Inputs
from spark_verify.frames.previous_run import TREND, divergent_before, previous_run
from spark_verify.frames.result_frames import JudgedContainers, judge_containers
from spark_verify.frames.volumes import count_votes
from spark_verify.options import VerifyOptions
from spark_verify.report import summary as summaries
from spark_verify.report.pages import html_report, text_report
from spark_verify.result_tables import PLAN_LIFE_MS, RESULTS, RUNS, STAMP
from spark_verify.session import open_session
from spark_verify.snapshot import checks
from spark_verify.snapshot.manifest import SnapshotManifest, read_manifest
from spark_verify.snapshot.reports import Reports, open_reports
from spark_verify.snapshot.tables import open_snapshot, parquet_reader, read_rows
from spark_verify.sql_text import casts, local_rows
from spark_verify.stage_progress import Progress, StageProgress
from spark_verify.storage import address_of, is_local, spark_path, storage_of

WRITE_OPTIONS: Final = {
    "compression": "zstd",
    "parquet.page.write-checksum.enabled": "true",
    "maxRecordsPerFile": "0",
    # Readers need only the _SUCCESS of the run.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """A request to verify a snapshot, the reports of datanodes, or both, and to write the
    result."""

    snapshot: str
    """Path or address of the snapshot; "" if there are only reports."""
    out: Path | str
    run_id: str = ""
    master: str = ""
    changed_nodes: tuple[str, ...] = ()
    """If this is not empty, only containers with a replica on one of these datanodes are
    verified."""
    reports: str = ""
    """Directory of the datanodes' reports. Their replicas are used instead of those in the
    snapshot."""
    options: VerifyOptions = field(default_factory=VerifyOptions)


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The summary of a finished run, and the location of its files."""

    out: str
    """Directory of all results, as a canonical path or address."""
    attempt: str
    summary: dict[str, Any]

    @property
    def run_id(self) -> str:
        """Id of the run."""
        return str(self.summary["run_id"])

    @property
    def address(self) -> str:
        """Path or address of the directory with the reports of the run."""
        return f"{self.out}/{runs.RUN}{self.run_id}"

    @property
    def directory(self) -> Path:
        """Local directory with the reports of the run."""
        return Path(self.address)

    def table(self, name: str) -> Path:
        """Return the local directory with the rows of this run in a table."""
        return Path(runs.table_of(self.out, name, run_id=self.run_id, attempt=self.attempt))


@dataclass(frozen=True, slots=True)
class VerificationRun:
    """A running verification: its request, its inputs, and the durations of its stages."""

    spark: SparkSession
    request: VerifyRequest
    source: str
    """Address of the snapshot."""
    reports: Reports | None
    manifest: SnapshotManifest
    inputs: dict[str, Any]
    attempt: runs.Attempt
    progress: StageProgress
    seconds: dict[str, float] = field(default_factory=dict)

    def materialize(self, name: str, rows: DataFrame) -> DataFrame:
        """Write rows to files of this attempt. Return the same rows, read from these files."""
        address = f"{self.attempt.work}/{name}"
        write(address, rows)
        kept = parquet_reader(self.spark).schema(rows.schema).parquet(spark_path(address))
        if not kept.inputFiles():
            raise apart(self, "the driver finds no file that workers wrote")
        return kept

    @contextmanager
    def phase(self, name: str, text: str) -> Iterator[None]:
        """Report the beginning of a phase to the caller and to Spark, and record how long the phase
        takes."""
        self.progress.say(text)
        self.progress.begin(text)
        started_s = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - started_s, 3)


def verify(request: VerifyRequest, progress: Progress = lambda _: None) -> VerifyResult:
    """Verify a snapshot, and write the result to `out/run_id=<run_id>`.

    If a finished run has the same input, return its result. Raise SnapshotRefused if the snapshot
    is invalid. Raise RunConflict if the run id belongs to a run with other input. After an error,
    the run does not count as finished.
    """
    named = (request.snapshot, request.reports)
    source, place = (address_of(one) if one else "" for one in named)
    out, options = address_of(request.out), request.options
    spark, now_ms = None, time.time_ns() // 1_000_000
    if place or not (is_local(source) and is_local(out)):
        progress("starting Spark")
        spark = open_session(row_count=0, master=request.master)
    recorded = read_manifest(storage_of(source, spark)) if source else None
    if recorded:
        checks.check_age(recorded, options.max_age_s, now_ms)
    reports = None
    if spark and place:
        progress(f"reading reports in {place}")
        known = (source, recorded) if recorded else None
        reports = open_reports(spark, place, known, options, now_ms)
    manifest = reports.manifest if reports else recorded
    assert manifest is not None, "a request names a snapshot, reports, or both"
    facts = reports.facts if reports else None
    run_id = runs.run_id_of(request.run_id, manifest, request.changed_nodes, facts)
    inputs = runs.inputs_of(manifest, request.changed_nodes, options, facts)
    attempt = runs.Attempt(storage_of(out, spark), run_id)
    done = _result(attempt, inputs)
    if done is not None:
        progress(f"run {run_id} is finished already")
        return done
    if spark is None:
        progress("starting Spark")
    spark = open_session(row_count=sum(manifest.rows.values()), master=request.master)
    stages = StageProgress(spark, progress)
    run = VerificationRun(spark, request, source, reports, manifest, inputs, attempt, stages)
    with stages.printed():
        return _done(run)


def _result(attempt: runs.Attempt, inputs: Mapping[str, Any]) -> VerifyResult | None:
    """Return the result of this run. Return None if no attempt has finished the run."""
    summary = runs.finished(attempt.storage, attempt.run_id, inputs)
    name = runs.attempt_of(attempt.storage, attempt.run_id)
    return VerifyResult(attempt.storage.address, name, summary) if summary and name else None


def _done(run: VerificationRun) -> VerifyResult:
    """Execute a run, commit its result, and return the result.

    If another process has finished the same run meanwhile, return the result of that process.
    """
    attempt = run.attempt
    runs.remove_left(attempt.storage)
    try:
        summary = _run(run)
        known = _result(attempt, run.inputs)
        if known is None:
            _commit(run, summary)
            attempt.end()
            return VerifyResult(attempt.storage.address, attempt.name, summary)
    except BaseException:
        attempt.abandon()
        raise
    attempt.abandon()
    run.progress.say(f"run {attempt.run_id} was finished by another process meanwhile")
    return known


def _run(run: VerificationRun) -> dict[str, Any]:
    manifest = run.manifest
    with run.phase("open", f"reading snapshot {manifest.snapshot_id}"):
        inputs, differing = _opened(run)
    counts = f"{manifest.rows['containers']:,} containers, {manifest.rows['replicas']:,} replicas"
    with run.phase("judge", f"judging {counts}"):
        judged = judge_containers(run.spark, inputs, run.materialize)
    with run.phase("write", "writing tables"):
        previous = previous_run(run.attempt.storage, manifest, run.attempt.run_id)
        tables, volumes = _write_tables(run, judged, _before(run, previous), differing)
    with run.phase("conclude", "concluding"):
        summary = _conclude(run, judged, tables, volumes, previous)
    summary["exit_code"] = int(summaries.exit_code(summary))
    summary["text_report"] = text_report(summary)
    return summary


def _opened(run: VerificationRun) -> tuple[Inputs, DataFrame]:
    """Return the validated input, and the rows of the table `disagreement/`."""
    manifest, request, reports = run.manifest, run.request, run.reports
    snapshot = reports.snapshot if reports else open_snapshot(run.spark, run.source)
    differing = local_rows(run.spark, RESULTS["disagreement"].schema, [])
    if reports and reports.recorded:
        known, known_manifest = reports.recorded
        both = run.materialize("both", compared(known["replicas"], snapshot["replicas"]))
        checks.check_counts(
            known_manifest, {"replicas": both.filter("recorded IS NOT NULL").count()}
        )
        snapshot = {**snapshot, "replicas": reported(both)}
        differing = disagreement(both, reports)
    nodes = checks.checked_nodes(snapshot["nodes"], manifest)
    checks.check_there(manifest, snapshot)
    checks.check_changed(nodes, request.changed_nodes)
    silent = reports.silent if reports else {}
    named = [n | {"datanode_id": silent.get(n["datanode_id"], n["datanode_id"])} for n in nodes]
    checks.check_reporting(named, request.options.reporting_min_percent)
    racks = {node["rack"] for node in nodes if node["health"] != "DEAD"}
    rules = Rules(**manifest.rules | request.options.own_rules | {"rack_count": len(racks) or 1})
    return Inputs(snapshot, manifest, nodes, rules, request.changed_nodes), differing


def _before(run: VerificationRun, previous: runs.RunSummary | None) -> DataFrame | None:
    """Return the rows of the table `divergent/` of the previous run.

    Return None if there is no previous run, or if its rows cannot be read.
    """
    if previous is None:
        return None
    try:
        return divergent_before(run.spark, run.attempt.storage, previous, run.materialize)
    except FAILURES as error:
        reason = describe_error(error)
        run.progress.say(f"run {previous.run_id} cannot be read, attempts begin again: {reason}")
        return None


def _write_tables(
    run: VerificationRun, judged: JudgedContainers, before: DataFrame | None, differing: DataFrame
) -> tuple[dict[str, DataFrame], list[dict[str, Any]]]:
    """Write the rows of all tables except for `runs`.

    Return the tables, as read from the written files, and the rows of the table `volumes/`.
    """
    tables: dict[str, DataFrame] = {}
    snapshot_id, at_ms = run.manifest.snapshot_id, run.manifest.as_of_ms
    stamp: dict[str, str | int] = dict(
        zip(STAMP, (snapshot_id, at_ms, at_ms + PLAN_LIFE_MS), strict=True)
    )

    def add(name: str, rows: DataFrame) -> None:
        run.progress.begin(f"writing {name}/")
        schema, address = RESULTS[name].schema, run.attempt.table(name)
        write(address, rows.selectExpr(*casts(schema, stamp)))
        tables[name] = read_rows(run.spark, schema, address)

    add("volumes", result_frames.volumes(judged))
    volumes = [row.asDict() for row in tables["volumes"].collect()]
    add("votes", count_votes(judged.cases, tables["volumes"]))
    add("health", result_frames.health(judged))
    add("replica_class", judged.cases.selectExpr("container_id", "inline(replica_class)"))
    add("divergent", result_frames.divergent(judged, before))
    planned = tables["divergent"].filter("not is_backed_off").sort("priority", "container_id")
    add("reconcile_plan", planned)
    add("plan", result_frames.plan(judged, volumes))
    add("disagreement", differing)
    return tables, volumes


def write(address: str, rows: DataFrame) -> None:
    """Write rows to a directory of Parquet files."""
    rows.write.options(**WRITE_OPTIONS).mode("overwrite").parquet(spark_path(address))


def _conclude(
    run: VerificationRun,
    judged: JudgedContainers,
    tables: Mapping[str, DataFrame],
    volumes: list[dict[str, Any]],
    previous: runs.RunSummary | None,
) -> dict[str, Any]:
    """Compute the summary of a run from the tables that it has written."""
    manifest, inputs = run.manifest, judged.inputs
    votes = [row.asDict() for row in tables["votes"].collect()]
    kinds = counting.count_kinds(tables["health"])
    actions = counting.count_actions(tables)
    backed_off, to_reconcile, listed, classes = (
        actions.get(name, (0, 0))[0]
        for name in (counting.BACKED_OFF, counting.RECONCILE, "scan", counting.REPLICA_CLASS)
    )
    written = {"health": sum(kind.containers for kind in kinds), "replica_class": classes}
    _check_written(run, judged, written | {"divergent": backed_off + to_reconcile})
    sample_max = run.request.options.sample_max
    ids = counting.sample_ids(tables["health"], sample_max)
    is_partial = bool(inputs.changed_nodes)
    silent = set(inputs.silent)
    wanting = [v for v in volumes if v["datanode_id"] not in silent and not is_partial]
    scan = (sum(v["scans"] for v in wanting), sum(v["scan_bytes"] for v in wanting))
    return {
        "snapshot_id": manifest.snapshot_id,
        "run_id": run.attempt.run_id,
        "as_of_ms": manifest.as_of_ms,
        "cluster_id": manifest.cluster_id,
        "term": manifest.term,
        "rows": manifest.rows,
        "inputs": run.inputs,
        "changed_nodes": run.inputs["changed_nodes"],
        "is_partial": is_partial,
        **summaries.count_health(kinds),
        "samples": summaries.samples(ids),
        "incomparable": summaries.incomparable(kinds, ids),
        "divergent": backed_off + to_reconcile,
        "backed_off": backed_off,
        "no_progress": counting.backed_off_ids(tables["divergent"], min(backed_off, sample_max)),
        "plan": summaries.count_plan(actions, scan),
        "scans_listed": listed,
        "verification_age": summaries.verification_ages(volumes),
        "lost_by_volume": summaries.count_lost(votes),
        "blame": [asdict(suspect) for suspect in suspects(votes, inputs.nodes)],
        "agreement": summaries.agreement(kinds, ids),
        "reports": run.inputs["reports"],
        "disagreement": {kind: actions.get(kind, (0, 0))[0] for kind in counting.DISAGREEMENTS},
        "disagreement_later": actions.get(counting.LATER, (0, 0))[0],
        "keys_at_risk": manifest.keys_at_risk and asdict(manifest.keys_at_risk),
        "previous": previous.model_dump(include=TREND) if previous else None,
        "rules": asdict(inputs.rules),
    }


def _check_written(
    run: VerificationRun, judged: JudgedContainers, written: Mapping[str, int]
) -> None:
    """Raise WorkersApart if the driver does not find all rows that the workers have written.

    This happens if the workers write to their own disks instead of a shared directory.
    """
    for name, count in judged.counts.items():
        if written[name] != count:
            raise apart(run, f"table {name}/ has {written[name]} rows, {count} were written")


def apart(run: VerificationRun, fact: str) -> WorkersApart:
    """Return the error for rows that the workers have written and that the driver does not find."""
    return WorkersApart(
        f"workers do not see {run.attempt.storage.address}: {fact}",
        hint="use a shared directory or an object store",
    )


def _commit(run: VerificationRun, summary: dict[str, Any]) -> None:
    """Write the reports, the row in the table `runs`, and the file _SUCCESS, which finishes the
    run."""
    attempt, storage = run.attempt, run.attempt.storage
    run.progress.begin("writing runs/")
    told = {name: summary[name] for name in ("run_id", *runs.IDENTITY, "changed_nodes", "reports")}
    told |= {"result_version": RESULT_VERSION, "attempt": attempt.name, "seconds": run.seconds}
    page = html_report(summary, f"{address_of(storage.address)}/{runs.RUN}{attempt.run_id}")
    texts = {
        "summary.json": json.dumps(summary, indent=2),
        "report.html": page,
        "manifest.json": json.dumps(told, indent=2),
    }
    for name, text in texts.items():
        storage.write_text(f"{runs.RUN}{attempt.run_id}/{name}", text + "\n")
    schema = RESULTS[RUNS].schema
    known = summary["inputs"] | summary | {"replicas": summary["rows"]["replicas"]}
    known["attempt"] = attempt.name
    row = local_rows(run.spark, schema, [[known[name] for name in schema.names]])
    write(attempt.table(RUNS), row.coalesce(1))
    storage.write_text(f"{runs.RUN}{attempt.run_id}/{runs.SUCCESS}", attempt.name)
