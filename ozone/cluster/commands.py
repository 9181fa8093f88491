"""Commands on a complete Ozone cluster: `suture ozone export` and `suture ozone reconcile`.

They call the cluster's storage container manager (SCM).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from ozone.access_options import (
    ConfOption,
    KeytabOption,
    PrincipalOption,
    ScmAddresses,
    ScmPrincipalOption,
    UserOption,
    identity_of,
    scm_addresses,
    site_config,
)
from ozone.clients.scm import OzoneScmClient
from ozone.cluster.scrubs import NOTHING_SCRUBBED, read_scrubs
from suture.errors import SutureError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.output import (
    items_progress,
    pluralize,
    print_json,
    print_line,
    print_note,
    print_rows,
)
from suture.terminal.typer_options import PlanArgument, flag, option

if TYPE_CHECKING:
    from ozone.cluster.export import ExportResult
    from ozone.cluster.reconcile import ReconcileReport

PER_MINUTE: Final = 60.0  # datanodes run a few at a time; none should queue for hours


def export_command(
    to: Annotated[Path, option("DIR", "New directory for the snapshot.", "--to")],
    scm: ScmAddresses = "",
    findings: Annotated[
        list[Path] | None, option("FILE", "Output of `suture ozone scrub --json`; may be repeated.")
    ] = None,
    user: UserOption = "",
    ozone_conf: ConfOption = None,
    principal: PrincipalOption = "",
    keytab: KeytabOption = None,
    scm_principal: ScmPrincipalOption = "",
) -> int:
    """Export the state of Ozone's SCM as a snapshot.

    The snapshot is input for suture-verify. The cluster is not changed.

    Exit codes:
        2: containers of an unsupported kind were left out

    Example:
        suture ozone export --scm scm1.example.org --to /srv/snapshot
    """
    from ozone.cluster.export import (
        ExportOptions,
        export,
    )  # imported late: needs Parquet, which a scrub does not

    scrubs = read_scrubs(findings) if findings else NOTHING_SCRUBBED
    config = site_config(ozone_conf)
    identity = identity_of(
        config, user=user, principal=principal, keytab=keytab, scm_principal=scm_principal
    )
    client = OzoneScmClient(scm_addresses(scm, config), identity)
    try:
        with items_progress("containers", 0) as progress:

            def show_progress(count: int, total: int) -> None:
                progress.update(progress.task_ids[0], total=total or None, advance=count)

            done = export(ExportOptions(client, to, scrubs), show_progress)
    finally:
        client.close()
    if is_json():
        print_json(done.facts())
    else:
        print_export(done)
    return ExitCode.TO_DO if done.left_out.reasons else ExitCode.OK


def print_export(done: "ExportResult") -> None:
    """Print the size and the cost of an export, and its warnings."""
    rows = done.rows
    print_line(
        f"{done.path}: {pluralize(rows['containers'], 'container')}, "
        f"{pluralize(rows['replicas'], 'replica')}, "
        f"{pluralize(rows['nodes'], 'datanode')} of cluster "
        f"{done.cluster_id}, as of {done.snapshot_id}"
    )
    print_line(
        f"{done.elapsed_s:.1f} s, {done.containers_ms:.0f} ms for 1,000 containers, "
        f"{pluralize(done.requests, 'request')} to {done.scm}"
    )
    if done.scrubbed_count:
        print_line(f"{pluralize(done.scrubbed_count, 'replica')} with what a scrub found of them")
    if done.is_safe_mode:
        print_note("the SCM is in safe mode: it does not know yet what the datanodes have")
    for reason, count in done.left_out.reasons.most_common():
        named = ", ".join(map(str, done.left_out.examples[reason]))
        print_note(f"left out, {pluralize(count, 'container')}: {reason}; first: {named}")


def reconcile_command(
    plan: PlanArgument,
    scm: ScmAddresses = "",
    yes: Annotated[bool, flag("Send the requests instead of showing them.", "--yes")] = False,
    per_minute: Annotated[
        float, option("COUNT", "Number of containers to request per minute.", min=0.1)
    ] = PER_MINUTE,
    user: UserOption = "",
    ozone_conf: ConfOption = None,
    principal: PrincipalOption = "",
    keytab: KeytabOption = None,
    scm_principal: ScmPrincipalOption = "",
) -> int:
    """Request the reconciliations of a plan from Ozone's SCM.

    Without --yes, the rows are only shown. Each row has the effect of `ozone admin container
    reconcile`.

    Exit codes:
        2: rows remain

    Example:
        suture ozone reconcile /srv/results/run_id=7 --scm scm1.example.org --yes
    """
    from ozone.cluster.reconcile import ReconcileOptions, ReconcileReport, reconcile, reconcile_plan
    from suture.wire.mapping.plan_file import FinishedRun

    run = FinishedRun.opened(plan)
    orders = ReconcileReport(reconcile_plan(run), is_dry_run=not yes)
    if run.scope:
        print_note(run.scope)
    config = site_config(ozone_conf)
    identity = identity_of(
        config, user=user, principal=principal, keytab=keytab, scm_principal=scm_principal
    )
    client = OzoneScmClient(scm_addresses(scm, config), identity)
    rows = len(orders.plan.rows)
    wish = ReconcileOptions(
        client=client, plan=orders.plan, is_dry_run=not yes, per_minute=per_minute
    )
    try:
        with items_progress("orders", rows) as progress:
            reconcile(wish, orders, lambda: progress.advance(progress.task_ids[0]))
    except SutureError as error:
        if is_json():
            error.facts |= orders.sent()
        elif orders.is_begun:  # report orders that were sent, whatever ended the run
            print_orders(orders)
        raise
    except KeyboardInterrupt:
        print_orders(orders)
        raise
    finally:
        client.close()
    print_orders(orders)
    return ExitCode.TO_DO if orders.is_unfinished else ExitCode.OK


def print_orders(orders: "ReconcileReport") -> None:
    """Print the outcome of each row of a reconcile plan."""
    if is_json():
        print_json(orders.facts())
        return
    columns = ["container#", "class", "reason", "outcome", "details"]
    rows = [
        (row.container_id, row.checksum_class, row.reason, *orders.outcomes[row.container_id])
        for row in orders.plan.rows
    ]
    if rows:
        print_rows(columns, rows)
    counts = orders.counts()
    named = ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
    print_line(f"{pluralize(len(rows), 'container')} to reconcile: {named or 'none'}")
    if orders.is_dry_run and rows:
        print_note("nothing was ordered: --yes does it")
