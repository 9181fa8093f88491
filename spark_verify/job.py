"""Command line `suture-verify`: verifies a snapshot and writes health, a plan and a report.

    suture-verify SNAPSHOT --out DIR [--run-id ID] [--changed-node ID ...] [--json]
    suture-verify --reports DIR [--snapshot SNAPSHOT] --out DIR
    suture-verify views DIR                         SQL for the tables of all runs
    suture-verify SNAPSHOT --out DIR --master spark://host:7077
    spark-submit --py-files suture.zip spark_verify/job.py SNAPSHOT --out DIR

Exit codes: 0 clean, 2 work to do, 4 data at risk, 1 failed (nothing was written), 64 wrong command
line, 130 stopped by Ctrl-C.

If a run with the same snapshot, nodes, rules and version is finished, its result is returned
without computing it again. If the run id belongs to a run with other input, the job fails (exit
code 1).
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from spark_verify.catalog_tables import Catalog, check_catalog
from spark_verify.errors import CatalogRefused, FlagRefused, describe_error, failures, hint_of
from spark_verify.options import OPTIONS, ResolvedOptions
from spark_verify.pipeline import VerifyRequest, VerifyResult, verify
from spark_verify.report.pages import verdict
from spark_verify.report.sql_views import ENGINES, views
from spark_verify.retention import RetentionPolicy, remove_old_runs
from spark_verify.session import open_session
from spark_verify.snapshot.manifest import read_manifest
from spark_verify.stage_progress import Progress
from spark_verify.storage import Storage, address_of, is_local, storage_of
from suture.observe.json_schema import versioned
from suture.observe.terminal_escape import printable
from suture.runtime.exit_codes import ExitCode, exit_code_of
from suture.terminal.command_help import SectionedCommand

HELP: Final = {"help_option_names": ["-h", "--help"]}
FROM_OPTIONS: Final = "from --options, else from the snapshot"

BACKED_OFF: Final = (
    "not to reconcile in this plan: they differed in the same way in the runs before (divergent/ "
    "has them)"
)
UNCHANGED: Final = (
    "nothing was changed: `suture scm apply-plan` or `suture-scm --verify` applies the plan"
)

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _number(metavar: str, text: str, *names: str) -> Any:
    """Return an option that a file of options, or the snapshot, may set, too."""
    return typer.Option(*names, metavar=metavar, help=text, show_default=FROM_OPTIONS)


def _text(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"suture-verify {version('suture')}")
        raise typer.Exit


def _timed_progress() -> Progress:
    """Return a function that prints a text with the time since now."""
    started_s = time.monotonic()
    return lambda text: _tell(f"[{time.monotonic() - started_s:6.1f} s] {text}", err=True)


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
]
SnapshotArgument = Annotated[
    str, typer.Argument(metavar="SNAPSHOT", help="Directory: a path, file:///, s3a:// or hdfs://.")
]
NamedSnapshotOption = Annotated[
    str, _text("DIR", "Compare reports with this snapshot.", "--snapshot")
]
MasterOption = Annotated[str, _text("URL", "Connect to this Spark master; default: local cores.")]
ChangedNodeOption = Annotated[
    list[str] | None, _text("DATANODE", "Verify only containers with a replica there.")
]
OptionsOption = Annotated[Path | None, _text("FILE", "Read options and rules from this TOML file.")]
MaintenanceMinOption = Annotated[
    int | None, _number("N", "Keep N replicas online during maintenance.")
]
EcRedundancyOption = Annotated[
    int | None, _number("N", "Keep N redundant EC shards online during maintenance.")
]
SampleMaxOption = Annotated[int | None, _number("N", "Name at most N container ids of each kind.")]
MaxAgeSOption = Annotated[
    int | None, _number("SECONDS", "Reject an older snapshot; 0 = unlimited.", "--max-age")
]
ReportingMinPercentOption = Annotated[
    int | None, _number("PERCENT", "Reject a snapshot with fewer reporting datanodes.")
]
KeepRunsOption = Annotated[
    int, typer.Option(metavar="N", min=0, help="Remove runs beyond the N newest; 0 = disabled.")
]
KeepDaysOption = Annotated[
    int, typer.Option(metavar="N", min=0, help="Remove runs older than N days; 0 = disabled.")
]
CatalogOption = Annotated[
    str, _text("CATALOG.NAMESPACE", "Also write tables to this Spark catalog.")
]
TableFormatOption = Annotated[
    str, _text("FORMAT", "Write the catalog as iceberg or delta tables.", "--format")
]
ShowOptionsOption = Annotated[
    bool, typer.Option("--show-options", help="Print all options and their sources, and exit.")
]


@app.command(cls=SectionedCommand, context_settings=HELP)
def verify_command(
    snapshot: SnapshotArgument = "",
    *,
    out: Annotated[str, _text("DIR", "Write the result to DIR/run_id=ID/.")],
    reports: Annotated[str, _text("DIR", "Verify the datanodes' reports in DIR.")] = "",
    named_snapshot: NamedSnapshotOption = "",
    run_id: Annotated[str, _text("ID", "Name the run; default: from snapshot and nodes.")] = "",
    master: MasterOption = "",
    changed_node: ChangedNodeOption = None,
    options: OptionsOption = None,
    maintenance_min: MaintenanceMinOption = None,
    ec_redundancy: EcRedundancyOption = None,
    sample_max: SampleMaxOption = None,
    max_age_s: MaxAgeSOption = None,
    reporting_min_percent: ReportingMinPercentOption = None,
    keep_runs: KeepRunsOption = 0,
    keep_days: KeepDaysOption = 0,
    catalog: CatalogOption = "",
    table_format: TableFormatOption = "iceberg",
    show_options: ShowOptionsOption = False,
    _version: VersionOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Compare the checksums of all replicas and plan repairs.

    With --keep-runs and --keep-days, a run is removed only if both allow it.

    Exit codes:
        0: all replicas agree
        1: failed; nothing was written
        2: repairs are planned
        4: data at risk: a container has no healthy replica

    Example:
        suture-verify /srv/snapshot --out /srv/results
    """
    flags = {name: given for name, given in locals().items() if name in OPTIONS}
    progress = _timed_progress()
    try:
        chosen = ResolvedOptions.of(flags, options)
        snapshot = _one_snapshot(snapshot, named=named_snapshot, reports=reports)
        if show_options:
            _say_options(chosen, _rules(snapshot, master), as_json=as_json)
            raise SystemExit(ExitCode.OK)
        given: dict[str, Any] = {
            "reports": reports,
            "own_rules": chosen.rules(),
            **chosen.numbers(),
        }
        request = VerifyRequest(snapshot, out, run_id, master, tuple(changed_node or ()), **given)
        if catalog:
            check_catalog(catalog, table_format)
        result = verify(request, progress)
        tables = _published(request, result, catalog, table_format, progress) if catalog else None
    except failures() as error:
        _say_error(error, as_json=as_json)
        raise SystemExit(
            ExitCode.USAGE if isinstance(error, FlagRefused) else ExitCode.FAILED
        ) from error
    _say_result(result, as_json=as_json)
    _remove_old(result, request, RetentionPolicy(keep_runs, keep_days), tables, progress)
    progress(f"done{', partial' if result.summary['is_partial'] else ''}: {result.address}")
    raise SystemExit(ExitCode(result.summary["exit_code"]))


VIEWS: Final = "views"
views_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@views_app.command(cls=SectionedCommand, context_settings=HELP)
def views_command(
    out: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory of results: a path or an address.")
    ],
    engine: Annotated[
        str, typer.Option(metavar="ENGINE", help=f"SQL dialect: {' or '.join(ENGINES)}.")
    ] = next(iter(ENGINES)),
) -> None:
    """Print SQL that creates views of the result tables.

    Each view has the rows of all complete runs.

    Example:
        suture-verify views /srv/results --engine spark
    """
    if engine not in ENGINES:
        _tell(f"suture-verify: {engine} is none of {', '.join(ENGINES)}", err=True)
        raise SystemExit(ExitCode.USAGE)
    try:
        statements = views(address_of(out), engine)
    except failures() as error:
        _say_error(error, as_json=False)
        raise SystemExit(ExitCode.FAILED) from error
    for statement in statements:
        typer.echo(statement)


def _one_snapshot(snapshot: str, *, named: str, reports: str) -> str:
    """Return the snapshot given as an argument or an option. Raise FlagRefused if both are given,
    or if neither a snapshot nor reports are given."""
    if (snapshot and named) or not (snapshot or named or reports):
        raise FlagRefused("invalid input: expected one SNAPSHOT, --reports DIR, or both")
    return snapshot or named


def _rules(snapshot: str, master: str) -> dict[str, int]:
    return read_manifest(_storage(address_of(snapshot), master)).rules if snapshot else {}


def _storage(address: str, master: str) -> Storage:
    """Return the files at an address; only a remote address needs Spark."""
    spark = None if is_local(address) else open_session(row_count=0, master=master)
    return storage_of(address, spark)


def _published(
    request: VerifyRequest, result: VerifyResult, namespace: str, kind: str, progress: Progress
) -> Catalog:
    """Write the rows of a run to a catalog. Raise CatalogRefused on failure; the result stays
    complete.
    """
    progress(f"writing tables of {namespace}")
    try:
        rows = int(result.summary["rows"]["replicas"])
        spark = open_session(row_count=rows, master=request.master)
        found = Catalog(spark, namespace, kind)
        found.publish(result.out, run_id=result.run_id, attempt=result.attempt)
    except failures() as error:
        raise CatalogRefused(
            f"cannot write the tables of {result.address} to {namespace}: {describe_error(error)}",
            hint="the result is complete; run the same command to try again",
        ) from error
    return found


def _remove_old(
    result: VerifyResult,
    request: VerifyRequest,
    keep: RetentionPolicy,
    tables: Catalog | None,
    progress: Progress,
) -> None:
    """Remove old runs from the result directory. A failure is reported and does not affect the
    result."""
    if not keep.count and not keep.days:
        return
    before = tables.withdraw if tables else lambda _: None
    try:
        storage = _storage(result.out, request.master)
        for run_id in remove_old_runs(storage, keep, before, asked=result.run_id):
            progress(f"removed run {run_id}: an old run")
    except failures() as error:
        progress(f"old runs were not removed: {describe_error(error)}")


def _say_error(error: Exception, *, as_json: bool) -> None:
    message = describe_error(error)
    hint = hint_of(error)
    code = getattr(error, "code", "VERIFY_FAILED")
    if as_json:
        facts: dict[str, Any] = {"code": code, "message": message, "hint": hint, "facts": {}}
        typer.echo(json.dumps(versioned({"error": facts})))
    for line in (f"suture-verify: {message}", *([f"hint: {hint}"] if hint else [])):
        _tell(line, err=True)


def _say_options(chosen: ResolvedOptions, rules: dict[str, int], *, as_json: bool) -> None:
    """Print the value and the source of each option of this verification."""
    rows = chosen.explained(rules)
    if as_json:
        names = ("value", "from", "meaning")
        known = {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}
        typer.echo(json.dumps(versioned({"options": known})))
        return
    for name, value, whence, meaning in rows:
        _tell(f"{name:<22} {value:>10,}  {whence:<8}  {meaning}")


def _say_result(result: VerifyResult, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(versioned({"path": result.address} | result.summary)))
        return
    summary = result.summary
    planned = {action: one["rows"] for action, one in summary["plan"].items() if one["rows"]}
    lines = [*summary["text_report"].split("\n"), ""]
    lines += [f"to {action}: {count:,}" for action, count in planned.items()]
    if summary["backed_off"]:
        lines += [f"{summary['backed_off']:,} {BACKED_OFF}"]
    if planned:
        lines += [UNCHANGED]
    _kind, title, sentence = verdict(summary)
    for line in (*lines, f"{title}: {sentence}", f"{result.address}/report.html"):
        _tell(line)


def _tell(text: str, *, err: bool = False) -> None:
    """Print one line, with control characters escaped."""
    typer.echo(printable(text), err=err)


def main() -> None:
    """Run the command; exit with 64, not typer's 2, on a usage error."""
    try:
        if sys.argv[1:2] == [VIEWS]:
            views_app(sys.argv[2:], prog_name=f"suture-verify {VIEWS}")
        app()
    except SystemExit as end:
        sys.exit(end.code if isinstance(end.code, ExitCode) else exit_code_of(end.code))


if __name__ == "__main__":  # spark-submit runs this file
    main()
