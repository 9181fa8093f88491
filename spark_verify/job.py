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
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from spark_verify.catalog_tables import Catalog, check_catalog
from spark_verify.errors import FAILURES, MORE_MEMORY, CatalogRefused, FlagRefused, describe_error
from spark_verify.options import NAMES, VerifyOptions
from spark_verify.pipeline import VerifyRequest, VerifyResult, verify
from spark_verify.report.sql_views import views
from spark_verify.runs import old_runs, remove_run
from spark_verify.session import open_session
from spark_verify.snapshot.manifest import read_manifest
from spark_verify.stage_progress import Progress
from spark_verify.storage import Storage, address_of, is_local, storage_of
from suture.observe.json_schema import versioned
from suture.observe.terminal_escape import printable
from suture.runtime.exit_codes import ExitCode, exit_code_of
from suture.terminal.command_help import SectionedCommand
from suture.terminal.typer_options import JsonFlag, argument, flag, option, version_flag

HELP: Final = {"help_option_names": ["-h", "--help"]}
FROM_OPTIONS: Final = "from --options, else from the snapshot"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _number(name: str, text: str, *names: str, metavar: str = "N") -> Any:
    """Return a command-line flag for a number of VerifyOptions, with its bounds. The default is
    that of a file or the snapshot."""
    bounds = VerifyOptions.model_json_schema()["properties"][name]
    low, high = bounds["minimum"], bounds["maximum"]
    return option(metavar, text, *names, min=low, max=high, show_default=FROM_OPTIONS)


def _timed_progress() -> Progress:
    """Return a function that prints a text with the seconds since this call."""
    started_s = time.monotonic()
    return lambda text: _tell(f"[{time.monotonic() - started_s:6.1f} s] {text}", err=True)


MaintenanceMinOption = Annotated[
    int | None, _number("maintenance_min", "Keep N replicas online during maintenance.")
]
EcRedundancyOption = Annotated[
    int | None, _number("ec_redundancy", "Keep N redundant EC shards online in maintenance.")
]
SampleMaxOption = Annotated[
    int | None, _number("sample_max", "Name at most N container ids of each kind.")
]
MaxAgeSOption = Annotated[
    int | None,
    _number(
        "max_age_s", "Reject an older snapshot; 0 = unlimited.", "--max-age", metavar="SECONDS"
    ),
]
ReportingMinPercentOption = Annotated[
    int | None,
    _number(
        "reporting_min_percent", "Reject a snapshot with fewer reporting nodes.", metavar="PERCENT"
    ),
]
KeepRunsOption = Annotated[
    int, option("N", "Remove runs beyond the N newest; 0 = disabled.", min=0)
]
KeepDaysOption = Annotated[int, option("N", "Remove runs older than N days; 0 = disabled.", min=0)]


@app.command(cls=SectionedCommand, context_settings=HELP)
def verify_command(
    snapshot: Annotated[str, argument("SNAPSHOT", "Path, file:///, s3a:// or hdfs://.")] = "",
    *,
    out: Annotated[str, option("DIR", "Write the result to DIR/run_id=ID/.")],
    reports: Annotated[str, option("DIR", "Verify the datanodes' reports in DIR.")] = "",
    named_snapshot: Annotated[str, option("DIR", "Snapshot to compare with.", "--snapshot")] = "",
    run_id: Annotated[str, option("ID", "Id of the run; default: derived from its input.")] = "",
    master: Annotated[str, option("URL", "Spark master to use; default: all local cores.")] = "",
    changed_node: Annotated[
        list[str] | None, option("DATANODE", "Verify only containers with a replica there.")
    ] = None,
    options: Annotated[Path | None, option("FILE", "Read options from this TOML file.")] = None,
    maintenance_min: MaintenanceMinOption = None,
    ec_redundancy: EcRedundancyOption = None,
    sample_max: SampleMaxOption = None,
    max_age_s: MaxAgeSOption = None,
    reporting_min_percent: ReportingMinPercentOption = None,
    keep_runs: KeepRunsOption = 0,
    keep_days: KeepDaysOption = 0,
    catalog: Annotated[str, option("CATALOG.NAMESPACE", "Also write to this catalog.")] = "",
    table_format: Annotated[
        Literal["iceberg", "delta"],
        option("FORMAT", "Write the catalog as iceberg or delta tables.", "--format"),
    ] = "iceberg",
    show_options: Annotated[
        bool, flag("Print all options and their sources, and exit.", "--show-options")
    ] = False,
    _version: Annotated[bool, version_flag("suture-verify")] = False,
    as_json: JsonFlag = False,
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
    flags = {name: given for name, given in locals().items() if name in NAMES}
    progress = _timed_progress()
    try:
        chosen = VerifyOptions.of(flags, options)
        snapshot = _one_snapshot(snapshot, named=named_snapshot, reports=reports)
        if show_options:
            place = address_of(snapshot)
            rules = read_manifest(_storage(place, master)).rules if snapshot else {}
            _say_options(chosen.explained(flags, rules), as_json=as_json)
            raise SystemExit(ExitCode.OK)
        nodes = tuple(changed_node or ())
        request = VerifyRequest(snapshot, out, run_id, master, nodes, reports, chosen)
        if catalog:
            check_catalog(catalog)
        result = verify(request, progress)
        tables = _published(request, result, catalog, table_format, progress) if catalog else None
    except FAILURES as error:
        _say_error(error, as_json=as_json)
        raise SystemExit(
            ExitCode.USAGE if isinstance(error, FlagRefused) else ExitCode.FAILED
        ) from error
    _say_result(result, as_json=as_json)
    if keep_runs or keep_days:
        keep = {"keep_runs": keep_runs, "keep_days": keep_days}
        _remove_old(result, request, keep, tables, progress)
    progress(f"done{', partial' if result.summary['is_partial'] else ''}: {result.address}")
    raise SystemExit(ExitCode(result.summary["exit_code"]))


VIEWS: Final = "views"
views_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@views_app.command(cls=SectionedCommand, context_settings=HELP)
def views_command(
    out: Annotated[str, argument("DIR", "Directory of results: a path or an address.")],
    engine: Annotated[
        Literal["duckdb", "spark"], option("ENGINE", "SQL dialect: duckdb or spark.")
    ] = "duckdb",
) -> None:
    """Print SQL that creates views of the result tables.

    Each view has the rows of all complete runs.

    Example:
        suture-verify views /srv/results --engine spark
    """
    try:
        statements = views(address_of(out), engine)
    except FAILURES as error:
        _say_error(error, as_json=False)
        raise SystemExit(ExitCode.FAILED) from error
    for statement in statements:
        typer.echo(statement)


def _one_snapshot(snapshot: str, *, named: str, reports: str) -> str:
    """Return the snapshot, given either as an argument or as an option. Raise FlagRefused if both
    are given, or if neither a snapshot nor reports are given."""
    if (snapshot and named) or not (snapshot or named or reports):
        raise FlagRefused("invalid input: expected one SNAPSHOT, --reports DIR, or both")
    return snapshot or named


def _storage(address: str, master: str) -> Storage:
    """Return access to the files at an address. Only a remote address starts Spark."""
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
        row_count = int(result.summary["rows"]["replicas"])
        spark = open_session(row_count=row_count, master=request.master)
        found = Catalog(spark, namespace, kind)
        found.publish(result.out, run_id=result.run_id, attempt=result.attempt)
    except FAILURES as error:
        raise CatalogRefused(
            f"cannot write the tables of {result.address} to {namespace}: {describe_error(error)}",
            hint="the result is complete; run the same command to try again",
        ) from error
    return found


def _remove_old(
    result: VerifyResult,
    request: VerifyRequest,
    keep: Mapping[str, int],
    tables: Catalog | None,
    progress: Progress,
) -> None:
    """Remove old runs from the result directory. A failure is reported and does not affect the
    result."""
    try:
        storage = _storage(result.out, request.master)
        old = old_runs(storage, asked=result.run_id, **keep)
        if tables:
            tables.withdraw(old)
        for run_id in old:
            remove_run(storage, run_id)
            progress(f"removed run {run_id}: an old run")
    except FAILURES as error:
        progress(f"old runs were not removed: {describe_error(error)}")


def _say_error(error: Exception, *, as_json: bool) -> None:
    message = describe_error(error)
    hint = getattr(error, "hint", MORE_MEMORY if isinstance(error, MemoryError) else "")
    code = getattr(error, "code", "VERIFY_FAILED")
    if as_json:
        facts: dict[str, Any] = {"code": code, "message": message, "hint": hint, "facts": {}}
        typer.echo(json.dumps(versioned({"error": facts})))
    for line in (f"suture-verify: {message}", *([f"hint: {hint}"] if hint else [])):
        _tell(line, err=True)


def _say_options(known: dict[str, dict[str, Any]], *, as_json: bool) -> None:
    """Print the value and the source of each option of this verification, as a table or as JSON."""
    if as_json:
        typer.echo(json.dumps(versioned({"options": known})))
        return
    for name, one in known.items():
        _tell(f"{name:<22} {one['value']:>10,}  {one['from']:<8}  {one['meaning']}")


def _say_result(result: VerifyResult, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(versioned({"path": result.address} | result.summary)))
        return
    for line in (*result.summary["text_report"].split("\n"), f"{result.address}/report.html"):
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
