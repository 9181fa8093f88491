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
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from spark_verify.catalog_tables import Catalog, check_catalog
from spark_verify.errors import CatalogRefused, FlagRefused, describe_error, failures, hint_of
from spark_verify.exits import Exit
from spark_verify.options import OPTIONS, ResolvedOptions
from spark_verify.pipeline import Progress, VerifyRequest, VerifyResult, verify
from spark_verify.plain_command import PlainCommand
from spark_verify.printable import printable
from spark_verify.report.pages import verdict
from spark_verify.report.sql_views import ENGINES, views
from spark_verify.retention import RetentionPolicy, remove_old_runs
from spark_verify.session import open_session
from spark_verify.snapshot.manifest import read_manifest
from spark_verify.storage import Storage, address_of, is_local, storage_of
from suture.observe.json_schema import versioned

HELP: Final = {"help_option_names": ["-h", "--help"]}
PARSERS_USAGE: Final = 2  # typer's exit code for a wrong command line

app = typer.Typer(add_completion=False, rich_markup_mode=None)


FROM_OPTIONS: Final = "from --options, else from the snapshot"

MaintenanceMin = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Keep N replicas online during maintenance.", show_default=FROM_OPTIONS
    ),
]
EcRedundancy = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Keep N redundant EC shards online during maintenance.",
        show_default=FROM_OPTIONS,
    ),
]
SampleMax = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Name at most N container ids of each kind.", show_default=FROM_OPTIONS
    ),
]
MaxAge = Annotated[
    int | None,
    typer.Option(
        "--max-age",
        metavar="SECONDS",
        help="Reject an older snapshot; 0 = unlimited.",
        show_default=FROM_OPTIONS,
    ),
]
ReportingMin = Annotated[
    int | None,
    typer.Option(
        metavar="PERCENT",
        help="Reject a snapshot with fewer reporting datanodes.",
        show_default=FROM_OPTIONS,
    ),
]

Master = Annotated[
    str,
    typer.Option(metavar="URL", help="Connect to this Spark master; default: local cores."),
]
ChangedNode = Annotated[
    list[str] | None,
    typer.Option(metavar="DATANODE", help="Verify only containers with a replica there."),
]
OptionsFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Read options and rules from this TOML file.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"suture-verify {version('suture')}")
        raise typer.Exit


VersionFlag = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
]
ShowOptionsFlag = Annotated[
    bool, typer.Option("--show-options", help="Print all options and their sources, and exit.")
]
KeepRuns = Annotated[
    int, typer.Option(metavar="N", min=0, help="Remove runs beyond the N newest; 0 = disabled.")
]
KeepDays = Annotated[
    int, typer.Option(metavar="N", min=0, help="Remove runs older than N days; 0 = disabled.")
]
CatalogName = Annotated[
    str, typer.Option(metavar="CATALOG.NAMESPACE", help="Also write tables to this Spark catalog.")
]
Format = Annotated[
    str,
    typer.Option(
        "--format", metavar="FORMAT", help="Write the catalog as iceberg or delta tables."
    ),
]


SnapshotArgument = Annotated[
    str,
    typer.Argument(metavar="SNAPSHOT", help="Directory: a path, file:///, s3a:// or hdfs://."),
]
ReportsOption = Annotated[
    str, typer.Option(metavar="DIR", help="Verify the datanodes' reports in DIR.")
]
NamedSnapshot = Annotated[
    str, typer.Option("--snapshot", metavar="DIR", help="Compare reports with this snapshot.")
]
RunId = Annotated[
    str, typer.Option(metavar="ID", help="Name the run; default: from snapshot and nodes.")
]


def _timed_progress() -> Callable[[str], None]:
    """Return a function that prints a text with the time since now."""
    started_s = time.monotonic()
    return lambda text: _tell(f"[{time.monotonic() - started_s:6.1f} s] {text}", err=True)


@app.command(cls=PlainCommand, context_settings=HELP)
def verify_command(
    snapshot: SnapshotArgument = "",
    *,
    out: Annotated[str, typer.Option(metavar="DIR", help="Write the result to DIR/run_id=ID/.")],
    reports: ReportsOption = "",
    named_snapshot: NamedSnapshot = "",
    run_id: RunId = "",
    master: Master = "",
    changed_node: ChangedNode = None,
    options: OptionsFile = None,
    maintenance_min: MaintenanceMin = None,
    ec_redundancy: EcRedundancy = None,
    sample_max: SampleMax = None,
    max_age_s: MaxAge = None,
    reporting_min_percent: ReportingMin = None,
    keep_runs: KeepRuns = 0,
    keep_days: KeepDays = 0,
    catalog: CatalogName = "",
    table_format: Format = "iceberg",
    show_options: ShowOptionsFlag = False,
    _version: VersionFlag = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Compare the checksums of all replicas and plan repairs.

    With --keep-runs and --keep-days, a run is removed only if both allow it.

    \b
    Exit codes:
        0: all replicas agree
        1: failed; nothing was written
        2: repairs are planned
        4: data at risk: a container has no healthy replica

    \b
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
            raise _ExitRequest(Exit.OK)
        request = VerifyRequest(
            snapshot,
            out,
            run_id,
            master,
            tuple(changed_node or ()),
            reports=reports,
            own_rules=chosen.rules(),
            **chosen.numbers(),
        )
        if catalog:
            check_catalog(catalog, table_format)
        result = verify(request, progress)
        tables = _published(request, result, catalog, table_format, progress) if catalog else None
    except failures() as error:
        _say_error(error, as_json=as_json)
        raise _ExitRequest(Exit.USAGE if isinstance(error, FlagRefused) else Exit.FAILED) from error
    _say_result(result, as_json=as_json)
    _remove_old(result, request, RetentionPolicy(keep_runs, keep_days), tables, progress)
    progress(f"done{', partial' if result.summary['is_partial'] else ''}: {result.address}")
    raise _ExitRequest(Exit(result.summary["exit_code"]))


VIEWS: Final = "views"
views_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@views_app.command(cls=PlainCommand, context_settings=HELP)
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

    \b
    Example:
        suture-verify views /srv/results --engine spark
    """
    if engine not in ENGINES:
        _tell(f"suture-verify: {engine} is none of {', '.join(ENGINES)}", err=True)
        raise _ExitRequest(Exit.USAGE)
    try:
        statements = views(address_of(out), engine)
    except failures() as error:
        _say_error(error, as_json=False)
        raise _ExitRequest(Exit.FAILED) from error
    for statement in statements:
        typer.echo(statement)


def _one_snapshot(snapshot: str, *, named: str, reports: str) -> str:
    """Return the snapshot given as an argument or an option. Raise FlagRefused if both are given,
    or if neither a snapshot nor reports are given."""
    if (snapshot and named) or not (snapshot or named or reports):
        raise FlagRefused("invalid input: expected one SNAPSHOT, --reports DIR, or both")
    return snapshot or named


class _ExitRequest(Exception):
    """Raised to exit with a code of the job; typer's own exit code 2 means a usage error."""

    def __init__(self, code: Exit) -> None:
        super().__init__(code)
        self.code = code


def _rules(snapshot: str, master: str) -> dict[str, int]:
    """Return the rules in a snapshot's manifest; only a remote snapshot needs Spark for this."""
    return read_manifest(_storage(address_of(snapshot), master)).rules if snapshot else {}


def _storage(address: str, master: str) -> Storage:
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


def _print_json(document: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(versioned(document)))


def _say_error(error: Exception, *, as_json: bool) -> None:
    message = describe_error(error)
    hint = hint_of(error)
    code = getattr(error, "code", "VERIFY_FAILED")
    if as_json:
        error_facts: dict[str, Any] = {"code": code, "message": message, "hint": hint, "facts": {}}
        _print_json({"error": error_facts})
    _tell(f"suture-verify: {message}", err=True)
    if hint:
        _tell(f"hint: {hint}", err=True)


def _say_options(chosen: ResolvedOptions, rules: dict[str, int], *, as_json: bool) -> None:
    """Print the value and the source of each option of this verification."""
    rows = chosen.explained(rules)
    if as_json:
        names = ("value", "from", "meaning")
        known = {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}
        _print_json({"options": known})
        return
    for name, value, whence, meaning in rows:
        _tell(f"{name:<22} {value:>10,}  {whence:<8}  {meaning}")


def _say_result(result: VerifyResult, *, as_json: bool) -> None:
    if as_json:
        _print_json({"path": result.address} | result.summary)
        return
    summary = result.summary
    planned = {action: one["rows"] for action, one in summary["plan"].items() if one["rows"]}
    lines = [*summary["text_report"].split("\n"), ""]
    lines += [f"to {action}: {count:,}" for action, count in planned.items()]
    if count := summary.get("backed_off", 0):  # results of earlier releases lack this
        lines += [
            f"{count:,} not to reconcile in this plan: they differed in the same way in the runs "
            "before (divergent/ has them)"
        ]
    if planned:
        lines += [
            "nothing was changed: `suture scm apply-plan` or `suture-scm --verify` applies the plan"
        ]
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
    except _ExitRequest as done:
        sys.exit(done.code)
    except SystemExit as end:
        sys.exit(Exit.USAGE if end.code == PARSERS_USAGE else end.code)


if __name__ == "__main__":  # spark-submit runs this file
    main()
