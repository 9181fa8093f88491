"""Commands of the group `scm` that change datanodes: `decommission`, `maintenance` and others."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from agent.cli.change.confirmation import DryRunFlag, Order, YesFlag
from agent.cli.inspect.key_lists import keys_in
from agent.cli.inspect.scm_commands import app
from agent.cli.inspect.status import EXIT_CODES
from health.cluster_verdict import DataVerdict
from suture.observe.terminal_escape import printable
from suture.runtime.exit_codes import ExitCode
from suture.terminal.common_options import is_json
from suture.terminal.credentials import connect
from suture.terminal.document import facts, print_messages
from suture.terminal.output import pluralize, print_json, print_line, say_lines, short
from suture.terminal.selection import OnOption, datanode_ids, selected
from suture.terminal.time_option import duration
from suture.terminal.transient_refusals import until_decided
from suture.terminal.typer_options import argument, flag
from suture.wire.v1 import scm_pb2

NO_DOUBT: Final = "every datanode is heard, and every closed container is equal and whole"
STATES: Final = ("OPEN", "CLOSING", "QUASI_CLOSED", "CLOSED", "DELETING", "DELETED")
CONDITIONS: Final = (
    "UNDER_REPLICATED",
    "MIS_REPLICATED",
    "OVER_REPLICATED",
    "MISSING",
    "MISSING_UNDER_REPLICATED",
    "UNHEALTHY",
    "UNHEALTHY_UNDER_REPLICATED",
    "UNHEALTHY_OVER_REPLICATED",
    "EMPTY",
    "OPEN_UNHEALTHY",
    "QUASI_CLOSED_STUCK",
)
UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

Datanodes = Annotated[
    list[str], argument("DATANODE", "Datanode ids or their prefixes, addresses, or /racks.")
]
ForceFlag = Annotated[bool, flag("Ignore failed safety checks.", "--force")]
SkipOption = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="CHECK", help="Ignore this check: nodes, sources or space."),
]
UndoFlag = Annotated[bool, flag("Cancel the request; return the datanodes to service.", "--undo")]


@app.command("decommission")
def decommission(
    ids: Datanodes,
    undo: UndoFlag = False,
    force: ForceFlag = False,
    skip: SkipOption = None,
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
) -> int:
    """Copy all replicas off datanodes and retire them.

    Example:
        suture scm decommission dn1.example.org:9861
    """
    if undo:
        return return_to_service(ids, dry_run=dry_run)
    request = scm_pb2.SetOperationalStatesRequest(op_state="DECOMMISSIONING", force=force)
    request.skipped_checks[:] = skip or ()
    return set_states(ids, request, dry_run=dry_run, yes=yes)


@app.command("maintenance")
def maintenance(
    ids: Datanodes,
    until: Annotated[
        float, duration("--until", text="Length of the maintenance; 0 = unlimited.")
    ] = 0,
    undo: UndoFlag = False,
    force: ForceFlag = False,
    skip: SkipOption = None,
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
) -> int:
    """Put datanodes into maintenance.

    Their replicas stay on disk. The SCM keeps the required number of replicas online on other
    datanodes.

    Example:
        suture scm maintenance dn1.example.org:9861 --until 4h
    """
    if undo:
        return return_to_service(ids, dry_run=dry_run)
    request = scm_pb2.SetOperationalStatesRequest(op_state="ENTERING_MAINTENANCE", force=force)
    request.skipped_checks[:] = skip or ()
    request.op_expiry_ms = int((time.time() + until) * 1000) if until else 0
    return set_states(ids, request, dry_run=dry_run, yes=yes)


def return_to_service(ids: list[str], *, dry_run: bool) -> int:
    """Request that datanodes return to service. This needs no confirmation."""
    request = scm_pb2.SetOperationalStatesRequest(op_state="IN_SERVICE")
    return set_states(ids, request, dry_run=dry_run, yes=True)


def set_states(
    ids: list[str], request: scm_pb2.SetOperationalStatesRequest, *, dry_run: bool, yes: bool
) -> int:
    """Request an operational state for datanodes.

    If `yes` is False, show the checks of the SCM and ask for confirmation first.
    """
    with connect() as client:
        request.datanode_ids[:] = datanode_ids(client, ids)
        submit = client.scm.set_operational_states
        order = Order(submit, request, f"{request.op_state} as shown?", show_node_decisions)
        return order.confirm_and_submit(dry_run=dry_run, yes=yes)


@app.command("decommission-status")
def decommission_status(on: OnOption = None) -> int:
    """Show datanodes that are leaving or in maintenance.

    Exit codes:
        2: a datanode is not ready to be switched off

    Example:
        suture scm decommission-status
    """
    with connect() as client:
        answer = client.scm.list_decommissions(scm_pb2.ListDecommissionsRequest())
        is_selected = selected(client, on)
    shown = [departure for departure in answer.departures if is_selected(departure.datanode_id)]
    rows = [
        (
            short(d.datanode_id),
            d.op_state,
            d.health,
            d.container_count,
            d.copying_count,
            d.required_count,
            d.unclosed_count,
            d.locked_count,
            "yes" if d.safe_to_stop else "no",
            until_text(d.op_expiry_ms),
        )
        for d in shown
    ]
    columns = ["datanode", "state", "health", "containers#", "copies#", "unsafe#"]
    columns += ["open#", "last copies#", "safe to stop", "time left"]
    print_messages("departures", columns, rows, shown)
    if not is_json():
        print_line(progress_text(shown))
        print_line(locked_text(answer))
    return ExitCode.OK if all(d.safe_to_stop for d in shown) else ExitCode.TO_DO


def progress_text(departures: Sequence[scm_pb2.Departure]) -> str:
    """Return a text with the remaining work of all datanodes that leave service.

    The numbers in the text decrease to 0.
    """
    ready = [short(d.datanode_id) for d in departures if d.safe_to_stop]
    lines = [f"may be switched off now: {', '.join(ready)}"] if ready else []
    left = pluralize(len(departures) - len(ready), "datanode")
    required = sum(d.required_count for d in departures)
    copying = sum(d.copying_count for d in departures)
    lines.append(f"{left} not ready: {required} replicas to make elsewhere, {copying} under way")
    return "\n".join(lines)


def locked_text(answer: scm_pb2.ListDecommissionsResponse) -> str:
    """Return a text with the number of containers that would be unreadable without some datanodes.

    The text has two numbers: one if all datanodes that are leaving were switched off, and one if
    all datanodes in maintenance were switched off.
    """
    return (
        f"containers nobody could read without all that leave: {answer.leaving_locked_count}, "
        f"without all that rest: {answer.resting_locked_count}"
    )


@app.command("report")
def report() -> int:
    """Show the replication manager's last report.

    The report names the keys of containers that are lost or lack blocks that keys need.

    Exit codes:
        2: the data needs attention
        3: the health of the data is unknown

    Example:
        suture scm report
    """
    with connect() as client:
        at_risk = keys_in(client, at_risk=True, all_of_them=is_json())
        answer = client.scm.get_report(scm_pb2.GetReportRequest())
        counts = client.scm.count_containers(scm_pb2.CountContainersRequest())
    verdict = DataVerdict(counts.verdict)
    if is_json():
        print_json(
            {
                **facts(answer),
                "summary": "; ".join(counts.reasons),
                "verdict": verdict,
                "healthy": verdict is DataVerdict.WHOLE,
                "at_risk": at_risk.document(),
            }
        )
    else:
        print_line("; ".join(counts.reasons) or NO_DOUBT)
        say_lines(report_text(answer))
        at_risk.show("Keys in containers that are lost or at risk")
    return EXIT_CODES[verdict]


def report_text(answer: scm_pb2.GetReportResponse) -> str:
    """Return the report of the replication manager as text, with the same sections as Ozone's
    report."""
    heading = "Container Summary Report"
    if answer.generated_at_ms:
        moment = datetime.fromtimestamp(answer.generated_at_ms / 1000, UTC)
        heading += f" generated at {moment:%Y-%m-%dT%H:%M:%SZ}"
    else:
        heading += ": the first round through all containers is not over, counts are not whole"
    lines = [heading, "=" * len(heading), "", "Container State Summary"]
    lines += [f"{state}: {answer.states[state]}" for state in STATES]
    lines.append(f"replicas RECOVERING: {answer.recovering_replica_count}")
    lines += ["", "Container Health Summary"]
    counts = {c.condition: c.count for c in answer.conditions}
    names = [*CONDITIONS, *sorted(set(counts) - set(CONDITIONS))]
    lines += [f"{name}: {counts.get(name, 0)}" for name in names]
    total, degraded = sum(answer.states.values()), sum(counts.values())
    lines.append(f"none of these: {total - degraded} of {total}")
    for sample in answer.conditions:
        ids = ", ".join(map(str, sample.container_ids))
        lines += ["", f"First {len(sample.container_ids)} {sample.condition} containers:", ids]
    if answer.waits:
        lines += ["", "What the repairs of these containers wait for:"]
    lines += [f"{wait.container_id}: {'; '.join(wait.reasons)}" for wait in answer.waits]
    lines += ["", "Verification", verification_text(answer)]
    return "\n".join(lines)


def verification_text(answer: scm_pb2.GetReportResponse) -> str:
    """Return a text with the result of the last verification run by Spark."""
    if not answer.verified_at_ms:
        return "none yet; suture-scm --verify runs one every few minutes"
    if answer.verify_error:
        return f"failed: {printable(answer.verify_error)}"
    rows = ", ".join(f"{code}: {count}" for code, count in sorted(answer.decisions.items()))
    return f"rows of the plan: {rows or 'none'}"


def until_text(expiry_ms: int) -> str:
    """Return the remaining time of a maintenance as text; "-" if it is unlimited."""
    if not expiry_ms:
        return "-"
    left_ms = max(0, expiry_ms - int(time.time() * 1000))
    unit = next((u for u in "dhm" if left_ms >= 2 * UNIT_MS[u]), "s")
    return f"{left_ms // UNIT_MS[unit]} {unit}"


@app.command("refresh-volumes")
def refresh_volumes(
    ids: Datanodes,
    register: Annotated[
        bool, flag("Also make datanodes register and send full reports.", "--register")
    ] = False,
) -> int:
    """Measure the used space of volumes now.

    Example:
        suture scm refresh-volumes dn1.example.org:9861
    """
    kind = "reregister" if register else "refresh_volume_usage"
    with connect() as client:
        request = scm_pb2.CommandNodesRequest(datanode_ids=datanode_ids(client, ids), type=kind)
        answer = until_decided(client.scm.command_nodes, request)
    return show_node_decisions(answer)


def show_node_decisions(answer: scm_pb2.NodeDecisions) -> int:
    """Print the SCM's decision about each datanode. Return exit code 1 if the SCM refused any
    request."""
    rows = [(short(d.datanode_id), d.code, d.message) for d in answer.decisions]
    columns = ["datanode", "decision", "reason"]
    print_messages("decisions", columns, rows, answer.decisions)
    return ExitCode.OK if all(d.code == "OK" for d in answer.decisions) else ExitCode.FAILED
