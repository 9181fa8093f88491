"""Command line `suture-verify`: verifies a snapshot, and writes health, a plan and a report.

    suture-verify SNAPSHOT --out DIR [--run-id ID] [--changed-node ID ...] [--json]
    suture-verify --reports DIR [--snapshot SNAPSHOT] --out DIR
    suture-verify views DIR                         SQL for the tables of all runs
    suture-verify SNAPSHOT --out DIR --master spark://host:7077
    spark-submit --py-files suture.zip spark_verify/job.py SNAPSHOT --out DIR

Exit codes: 0 clean, 2 work to do, 4 data at risk, 1 failed (nothing was written), 64 wrong command
line, 130 stopped by Ctrl-C.

If a finished run has the same snapshot, nodes, rules and version of the job, its result is returned
without a new computation. If the run id belongs to a run with other input, the job fails with exit
code 1.

`--help` and `--version` do not need Spark, because each command imports `commands` only when it
runs.
"""

import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from spark_verify.options import NAMES, VerifyOptions
from suture.runtime.exit_codes import ExitCode, exit_code_of
from suture.terminal.command_help import SectionedCommand
from suture.terminal.typer_options import JsonFlag, argument, flag, option, version_flag

HELP: Final = {"help_option_names": ["-h", "--help"]}
FROM_OPTIONS: Final = "from --options, else from the snapshot"

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def _number(name: str, text: str, *names: str, metavar: str = "N") -> Any:
    """Return a command-line option for a number in VerifyOptions, with the bounds of this number.

    If the option is not given, the value of the options file or of the snapshot is used.
    """
    bounds = VerifyOptions.model_json_schema()["properties"][name]
    low, high = bounds["minimum"], bounds["maximum"]
    return option(metavar, text, *names, min=low, max=high, show_default=FROM_OPTIONS)


MaintenanceMinOption = Annotated[
    int | None, _number("maintenance_min", "Keep N replicas online during maintenance.")
]
EcRedundancyOption = Annotated[
    int | None, _number("ec_redundancy", "Keep N redundant EC shards online in maintenance.")
]
SampleMaxOption = Annotated[
    int | None, _number("sample_max", "Show at most N container ids for each problem.")
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
        "reporting_min_percent", "Reject a snapshot if fewer nodes reported.", metavar="PERCENT"
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
        list[str] | None,
        option("DATANODE", "Verify only containers with a replica on this datanode."),
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
    from spark_verify import commands
    from spark_verify.pipeline import VerifyRequest

    flags = {name: given for name, given in locals().items() if name in NAMES}
    with commands.printed_errors(as_json=as_json):
        chosen = VerifyOptions.of(flags, options)
        source = commands.one_snapshot(snapshot, named=named_snapshot, reports=reports)
        if show_options:
            rules = commands.rules_of(source, master)
            commands.print_options(chosen.explained(flags, rules), as_json=as_json)
            raise SystemExit(ExitCode.OK)
    nodes = tuple(changed_node or ())
    request = VerifyRequest(source, out, run_id, master, nodes, reports, chosen)
    keep = {"keep_runs": keep_runs, "keep_days": keep_days}
    raise SystemExit(
        commands.verify_and_publish(request, keep, catalog, table_format, as_json=as_json)
    )


VIEWS: Final = "views"
views_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@views_app.command(cls=SectionedCommand, context_settings=HELP)
def views_command(
    out: Annotated[str, argument("DIR", "Directory or URI of the results.")],
    engine: Annotated[
        Literal["duckdb", "spark"], option("ENGINE", "SQL dialect: duckdb or spark.")
    ] = "duckdb",
) -> None:
    """Print SQL that creates views of the result tables.

    Each view has the rows of all complete runs.

    Example:
        suture-verify views /srv/results --engine spark
    """
    from spark_verify.commands import print_views

    print_views(out, engine)


def main() -> None:
    """Run the command line. Exit with code 64 on a usage error, in place of typer's code 2."""
    try:
        if sys.argv[1:2] == [VIEWS]:
            views_app(sys.argv[2:], prog_name=f"suture-verify {VIEWS}")
        app()
    except SystemExit as end:
        sys.exit(end.code if isinstance(end.code, ExitCode) else exit_code_of(end.code))


if __name__ == "__main__":  # spark-submit runs this file
    main()
