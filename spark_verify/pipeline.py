"""One verification from snapshot to finished result.

    snapshot ─► parts ─► checked ─► by container ─► the judge ─┬► health/  replica_class/
                                                               ├► divergent/  reconcile_plan/
                                                               ├► plan/
                                                               └► tallies, sums by volume
    and from what was counted: summary.json, report.html, manifest.json, runs/, at last _SUCCESS

What is written becomes a finished run at the end, and not before (`runs`).
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa

from health.rules import Rules
from spark_verify.errors import SnapshotRefused
from spark_verify.exits import exit_code
from spark_verify.file_systems import Place
from spark_verify.input_columns import RESULT_VERSION, ROWS_PER_CONTAINER_MAX, SAMPLE_MAX
from spark_verify.previous_run import Previous, parts_before, previous_run
from spark_verify.report.html_report import render
from spark_verify.report.summary import (
    agreement,
    blame,
    count_health,
    count_lost,
    count_plan,
    incomparable,
    judged_kinds,
    leaving_nodes,
    samples,
    text_report,
    verification_ages,
)
from spark_verify.result_tables import RESULTS, RUNS
from spark_verify.runs import (
    TEXTS,
    Attempt,
    attempt,
    finished,
    inputs_of,
    run_id_of,
    run_of,
    table_of,
)
from spark_verify.snapshot.manifest import SCAN_AGAIN, Manifest, read_manifest
from spark_verify.snapshot.refusals import (
    HOLDING,
    check_age,
    check_changed,
    check_nodes,
    check_reporting,
    check_there,
    refuse_rows,
    refuse_twice,
)
from spark_verify.snapshot.snapshot_reading import Part, open_snapshot, read_part, whole_table
from spark_verify.snapshot.violations import EXAMPLES_MAX
from spark_verify.tasks.distribution import (
    Counted,
    has_session,
    is_submitted,
    run_here,
    run_on_spark,
)
from spark_verify.tasks.judge_batches import nodes_of
from spark_verify.tasks.judging import PARTS, Case, Job
from spark_verify.tasks.processes import cores_here, processes_here, run_in_processes
from spark_verify.tasks.result_files import sweep
from spark_verify.tasks.row_exchange import Layout
from spark_verify.tasks.scan_rows import silent_nodes
from spark_verify.tasks.tallies import Tallies
from spark_verify.tasks.verdict_rows import Stamp

HERE_ROWS: Final = 5_000_000
"""Replica rows that one process verifies by itself, in some ten seconds and a gigabyte. For more,
there is one a core."""

REPORTING_MIN_PERCENT: Final = 50
"""Nodes that must answer, of all in service or leaving: else silence would pass for loss."""


Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What to verify and where to put the result."""

    snapshot: str
    out: Path | str
    """A path or an address, as the snapshot."""
    run_id: str = ""
    master: str = ""
    changed_nodes: tuple[str, ...] = ()
    """When given, only containers with a replica on one of these nodes are verified."""
    age_max_s: int = 0
    """A snapshot older than this is refused; 0: of any age."""
    reporting_min_percent: int = REPORTING_MIN_PERCENT
    """Of the nodes that should answer; with fewer the snapshot is refused."""
    rules: Rules = field(default_factory=Rules)
    own_rules: Mapping[str, int] = field(default_factory=dict)
    """Numbers that a person chose: they come before what the control plane says in its snapshot."""
    sample_max: int = SAMPLE_MAX
    """Container ids that are named of each kind."""
    here_rows: int = HERE_ROWS
    """Replica rows up to which no other process is started, unless a master or a session is
    given."""


@dataclass(frozen=True, slots=True)
class Result:
    """Where a finished run lies and what it found."""

    place: Place
    summary: dict[str, Any]

    @property
    def directory(self) -> Path:
        """The directory of a result on a local disk."""
        assert self.place.is_local
        return Path(self.place.path)

    def table(self, name: str) -> Path:
        """The directory of its rows of a table, on a local disk."""
        assert self.place.is_local
        return Path(table_of(self.place, name).path)


@dataclass(frozen=True, slots=True)
class Run:
    """One run under way."""

    request: Request
    manifest: Manifest
    run_id: str
    inputs: dict[str, Any]
    out: Place
    attempt: Attempt
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
        rules=replace(request.rules, **request.own_rules),
        own_rules=sorted(request.own_rules),
        reporting_min_percent=request.reporting_min_percent,
        sample_max=request.sample_max,
    )
    out = Place.of(request.out)
    target = run_of(out, run_id)
    known = finished(target, inputs)
    if known is None:
        with attempt(out, run_id) as grown:
            known = finished(target, inputs)  # by another process, until this one could begin
            if known is None:
                run = Run(request, manifest, run_id, inputs, out, grown, progress, {})
                return Result(target, _committed(run))
    progress(f"run {run_id} is finished already")
    return Result(target, known)


def _committed(run: Run) -> dict[str, Any]:
    """Do the run, and make it a finished one; return its summary."""
    summary = _run(run)
    told = _result_manifest(run, summary)
    texts = json.dumps(summary, indent=2), render(summary), json.dumps(told, indent=2)
    named = {name: text + "\n" for name, text in zip(TEXTS, texts, strict=True)}
    run.attempt.commit(named, _row_of_runs(summary))
    return summary


def _run(run: Run) -> dict[str, Any]:
    manifest, request = run.manifest, run.request
    run.say(f"reading snapshot {manifest.snapshot_id}: {manifest.rows['replicas']:,} replicas")
    started_s = time.monotonic()
    parts = open_snapshot(request.snapshot, manifest)
    check_there(manifest, (read_part(part, HOLDING) for part in parts["containers"]))
    table = whole_table("nodes", parts["nodes"], manifest)
    nodes = table.to_pylist()
    check_nodes(nodes)
    check_changed(nodes, request.changed_nodes)
    check_reporting(nodes, request.reporting_min_percent)
    racks = {node["rack"] for node in nodes if node["health"] != "DEAD"}
    chosen = manifest.rules | dict(request.own_rules)
    rules = replace(request.rules, **chosen | {"rack_count": max(len(racks), 1)})
    versions = tuple(table.sort_by("datanode_id")["version"].to_pylist())
    case = Case(nodes_of(table), rules, run.stamp, manifest, versions, request.sample_max)
    previous = previous_run(run.out, manifest, run.run_id)
    run.timed("open", started_s)
    started_s = time.monotonic()
    wanted = [part for name in PARTS for part in parts[name]]
    before, damage = parts_before(previous)
    wanted += before
    counted = _counted(wanted, case, silent_nodes(nodes), run)
    run.timed("judge", started_s)
    damages = [damage, *(text for (text,) in counted.tallies.of("unread"))]
    if previous and any(damages):
        why = next(filter(None, damages))
        run.say(f"run {previous.place.name} cannot be read, attempts begin again: {why}")
    _check_told(counted.tallies)
    (run.attempt.parts,) = counted.tallies.of("parts").get((), [0])
    run.say("concluding")
    started_s = time.monotonic()
    if run.attempt.root.is_local:  # elsewhere a file is there as a whole or not at all
        sweep(run.attempt.root)
    summary = _conclude(counted, previous, nodes, run)
    run.timed("conclude", started_s)
    summary["rules"] = asdict(rules)
    summary["exit_code"] = exit_code(summary)
    summary["text_report"] = text_report(summary)
    return summary


def _counted(parts: list[Part], case: Case, silent: tuple[str, ...], run: Run) -> Counted:
    """Read and judge everything, here, in processes of this machine, or on Spark where a master or
    a session is given; the tables of the result are written."""
    request, replicas = run.request, run.manifest.rows["replicas"]
    rows = max(replicas, run.manifest.rows["containers"])

    def job(layout: Layout) -> Job:
        work, suffix = str(run.attempt.root), run.attempt.suffix
        return Job(case, layout, work, suffix, request.changed_nodes, silent)

    what = f"{run.manifest.rows['containers']:,} containers"
    if rows <= request.here_rows and not request.master and not is_submitted():
        run.say(f"judging {what} in this process")
        return run_here(parts, job(Layout(1)))
    layout = Layout.of(rows, partitions_min=min(cores_here(), len(parts)))
    if not request.master and not has_session():
        count = processes_here()
        run.say(f"judging {what} in {count} processes")
        with _exchange(run.attempt.root) as directory:
            return run_in_processes(parts, job(layout), processes=count, exchange=directory)
    run.say("starting Spark")
    from spark_verify.tasks.session import (
        open_session,  # only where it is wanted: it takes a second
    )

    spark = open_session(replica_count=replicas, master=request.master)
    run.say(f"judging {what} in tasks of Spark")
    return run_on_spark(spark, parts, job(layout))


@contextmanager
def _exchange(root: Place) -> Iterator[Path]:
    """Yield a directory for what tasks exchange: where the run grows, so that what a killed one
    left goes with it, or on this machine's disk for temporary files."""
    near = Path(root.path) if root.is_local else None
    with TemporaryDirectory(prefix=".exchange-", dir=near) as name:
        yield Path(name)


def _check_told(tallies: Tallies) -> None:
    """Refuse a snapshot of which a task told that it cannot be."""
    impossible: dict[tuple[str, str], tuple[int, list[str]]] = {}
    for (name, what, *named), (count,) in tallies.of("impossible").items():
        before, others = impossible.get((name, what), (0, []))
        impossible[name, what] = (before + count, [*others, *named])
    for (name, what), (count, named) in impossible.items():
        refuse_rows(name, what, count, sorted(named))
    for name in ("replicas", "pending_ops"):
        crowds = sorted(named for table, named in tallies.of("crowd") if table == name)
        if crowds:
            raise SnapshotRefused(
                f"table {name}/: a container has at most {ROWS_PER_CONTAINER_MAX} rows; "
                f"first: {', '.join(crowds[:EXAMPLES_MAX])}",
                hint=SCAN_AGAIN,
            )
    for key in tallies.of("twice"):
        ids = tallies.ids("twice", key)[:EXAMPLES_MAX]
        refuse_twice("containers", [f"container_id {container_id}" for container_id in ids])
    for what, *named in tallies.of("strange"):
        raise SnapshotRefused(
            f"table pending_ops/: row(s) whose {what} is in no other table; "
            f"first: {', '.join(named)}",
            hint=SCAN_AGAIN,
        )
    wrong = [
        (container_id, text)
        for (text,) in tallies.of("violation")
        for container_id in tallies.ids("violation", (text,))
    ]
    if wrong:
        shown = ", ".join(f"(container {i}: {text})" for i, text in sorted(wrong)[:EXAMPLES_MAX])
        raise SnapshotRefused(
            f"the tables contradict each other: {shown}",
            hint="export the snapshot again from the SCM",
        )


def _check_counts(manifest: Manifest, tallies: Tallies) -> None:
    """Refuse when the judge was not shown every row of the snapshot."""
    shown = tallies.of("rows").get((), [0, 0, 0])
    asked = [manifest.rows[name] for name in PARTS]
    if shown != asked:
        raise SnapshotRefused(
            f"{shown[0]} containers, {shown[1]} replicas and {shown[2]} pending ops were judged of "
            f"{asked[0]}, {asked[1]} and {asked[2]}",
            hint="did the files of the snapshot change while it was read?",
        )


def _conclude(
    counted: Counted, previous: Previous | None, nodes: list[Any], run: Run
) -> dict[str, Any]:
    """Return the run in numbers."""
    manifest, tallies = run.manifest, counted.tallies
    volumes, votes = counted.sums.volumes.to_pylist(), counted.sums.votes.to_pylist()
    if not run.request.changed_nodes:
        _check_counts(manifest, tallies)
    silent = silent_nodes(nodes)
    wanting = [v for v in volumes if v["scans"] and v["datanode_id"] not in silent]
    if run.request.changed_nodes:
        wanting = []
    scan = (sum(v["scans"] for v in wanting), sum(v["scan_bytes"] for v in wanting))
    kinds = judged_kinds(tallies)
    return {
        **asdict(run.stamp),
        "cluster_id": manifest.cluster_id,
        "term": manifest.term,
        "rows": manifest.rows,
        "inputs": run.inputs,
        "changed_nodes": run.inputs["changed_nodes"],
        "is_partial": bool(run.request.changed_nodes),
        **count_health(kinds),
        "samples": samples(kinds, run.request.sample_max),
        "incomparable": incomparable(tallies),
        "backed_off": tallies.of("backed_off").get((), [0])[0],
        "no_progress": tallies.ids("backed_off", ())[: run.request.sample_max],
        "plan": count_plan(tallies, scan),
        "scans_listed": tallies.of("scans").get((), [0])[0],
        "verification_age": verification_ages(volumes),
        "lost_by_volume": count_lost(votes),
        "blame": blame(votes, nodes),
        "leaving": leaving_nodes(tallies, nodes, volumes),
        "agreement": agreement(tallies),
        "keys_at_risk": asdict(manifest.keys_at_risk) if manifest.keys_at_risk else None,
        "previous": previous.facts() if previous else None,
    }


def _row_of_runs(summary: dict[str, Any]) -> pa.Table:
    """Return the row by which SQL finds a run that is whole."""
    inputs = summary["inputs"]
    replicas = {"replicas": summary["rows"]["replicas"]}
    schema = RESULTS[RUNS].schema
    known = inputs | summary | replicas
    return pa.Table.from_pylist([{name: known[name] for name in schema.names}], schema=schema)


def _result_manifest(run: Run, summary: dict[str, Any]) -> dict[str, object]:
    return {
        "result_version": RESULT_VERSION,
        "run_id": run.run_id,
        "attempt": run.attempt.suffix,
        "snapshot_id": run.manifest.snapshot_id,
        "as_of_ms": run.manifest.as_of_ms,
        "term": run.manifest.term,
        "changed_nodes": run.inputs["changed_nodes"],
        "rows": {
            "health": summary["containers"] + summary["unknown_containers"],
            "reconcile_plan": summary["plan"]["reconcile"]["rows"],
            "plan": summary["scans_listed"]
            + sum(p["rows"] for a, p in summary["plan"].items() if a not in ("reconcile", "scan")),
        },
        "seconds": run.seconds,
    }
