"""Command `scm apply-plan`: shows the effect of a plan, asks for confirmation, and submits the
plan.

`suture-verify` writes the plan, and the SCM checks and executes it.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import typer

from agent.cli.change.confirmation import (
    DryRunFlag,
    ExpectOption,
    YesFlag,
    read_decisions,
    require_confirmation,
)
from agent.cli.change.container_commands import show_orders
from agent.cli.inspect.scm_commands import (
    WaitOption,
    app,
    scan_decision,
    show_decisions,
    wait_and_show,
)
from suture.client.cluster_client import ClusterClient
from suture.errors import Code, RefusedError
from suture.runtime.exit_codes import ExitCode
from suture.terminal.credentials import connect
from suture.terminal.output import pluralize, print_note
from suture.terminal.transient_refusals import until_decided
from suture.terminal.typer_options import PlanArgument
from suture.wire.mapping.plan_file import SCAN, FinishedRun, PlannedScans, read_plan
from suture.wire.v1 import scm_pb2

PLAN_ROWS: Final = 5_000  # maximum number of rows in one call

Rows = Sequence[scm_pb2.PlanRow]


@app.command("apply-plan")
def apply_plan(
    plan: PlanArgument,
    dry_run: DryRunFlag = False,
    yes: YesFlag = False,
    expect: ExpectOption = None,
    wait_s: WaitOption = 0,
) -> int:
    """Apply a repair plan of suture-verify.

    Each row is checked against the current state of the cluster. A plan that deletes replicas needs
    a confirmation. Nothing is done if a container changed since the plan was shown.

    Exit codes:
        2: a row was not carried out, or the wait timed out

    Example:
        suture scm apply-plan /srv/results/run_id=7 --dry-run
    """
    run = FinishedRun.opened(plan)
    request = read_plan(run, but=SCAN)
    if run.scope:
        print_note(run.scope)
    rows: Rows = request.rows
    scans = PlannedScans.of(run)
    with connect() as client:
        handed = PlanSubmission(client, request.snapshot_id, request.run_id)
        if dry_run:
            return show_orders(handed.decide(rows, scans, [], dry_run=True))
        code, worlds = ExitCode.OK, list[int]()
        if expect is not None:
            shown = decisions_in(expect, chain(rows, scans))
            rows, scans, worlds = still_wanted(rows, scans, shown)
        if not yes and any(row.action == "delete" for row in rows):
            require_confirmation()
            trial = handed.decide(rows, scans, worlds, dry_run=True)
            code = ExitCode(show_orders(trial))
            rows, scans, worlds = still_wanted(rows, scans, trial.decisions)
            if not (rows or scans) or not typer.confirm(question(rows, len(scans)), err=True):
                return ExitCode.FAILED
        answer = handed.decide(rows, scans, worlds, dry_run=False)
        done = wait_and_show(client, wait_s, answer) if wait_s else show_decisions(answer)
        return code or done


class PlanSubmission:
    """Submits the rows of one plan to the control plane."""

    def __init__(self, client: ClusterClient, snapshot_id: str, run_id: str) -> None:
        self._client = client
        self._snapshot_id = snapshot_id
        self._run_id = run_id

    def decide(
        self, rows: Rows, scans: PlannedScans, worlds: Sequence[int], *, dry_run: bool
    ) -> scm_pb2.ContainerDecisions:
        """Send the rows to the SCM, and request the scans from the datanodes. Return the decisions
        on both.

        `worlds` has a fingerprint for each row: the state of the row's container when the user has
        seen the preview. If a container has changed since then, the SCM rejects all rows of the
        call. If the rows need several calls, a dry run of all rows is made first. If it rejects a
        row, nothing is changed.
        """
        if worlds and len(rows) > PLAN_ROWS and not dry_run:
            again = self._ordered(rows, worlds, dry_run=True)
            if any(decision.code != "OK" for decision in again.decisions):
                return aborted(again)
        answer = self._ordered(rows, worlds, dry_run=dry_run)
        is_begun = not rows or any(decision.code == "OK" for decision in answer.decisions)
        if dry_run or not worlds or is_begun:
            answer.decisions.extend(
                scan_decision(self._client, row, dry_run=dry_run) for row in scans
            )
        return answer

    def _ordered(
        self, rows: Rows, worlds: Sequence[int], *, dry_run: bool
    ) -> scm_pb2.ContainerDecisions:
        answer = scm_pb2.ContainerDecisions()
        for first in range(0, len(rows), PLAN_ROWS):
            page = scm_pb2.ApplyPlanRequest(
                snapshot_id=self._snapshot_id,
                run_id=self._run_id,
                rows=rows[first : first + PLAN_ROWS],
                dry_run=dry_run,
                worlds=worlds[first : first + PLAN_ROWS],
            )
            answer.decisions.extend(until_decided(self._client.scm.apply_plan, page).decisions)
        return answer


def aborted(again: scm_pb2.ContainerDecisions) -> scm_pb2.ContainerDecisions:
    """Change each decision OK in `again` to STALE_PLAN, and return `again`.

    This is done if another container of the plan has changed since the user has seen the preview.
    """
    for decision in again.decisions:
        if decision.code == "OK":
            del decision.orders[:]
            decision.code = Code.STALE_PLAN
            decision.message = "not done either: other containers changed since this was shown"
            decision.copies_after = decision.copies_before
    return again


def still_wanted(
    rows: Rows, scans: PlannedScans, shown: Sequence[scm_pb2.ContainerDecision]
) -> tuple[Rows, PlannedScans, list[int]]:
    """Return the rows and scans that the SCM accepted in the preview, and fingerprints of their
    containers."""
    wanted = [pair for pair in zip(rows, shown[: len(rows)], strict=True) if pair[1].code == "OK"]
    codes = [decision.code == "OK" for decision in shown[len(rows) :]]
    return [row for row, _ in wanted], scans.only(codes), [told.world for _, told in wanted]


def question(rows: Rows, scan_count: int) -> str:
    """Return the question by which the user confirms the plan. It names the deletes first."""
    doomed = sum(len(row.targets) for row in rows if row.action == "delete")
    others = sum(row.action != "delete" for row in rows) + scan_count
    also = f" and does {pluralize(others, 'other thing')}" if others else ""
    return f"the plan deletes {pluralize(doomed, 'replica')}{also}; apply it as shown?"


def decisions_in(path: Path, rows: Iterable[scm_pb2.PlanRow]) -> list[scm_pb2.ContainerDecision]:
    """Return the decisions on `rows` from the file `path`, which is the JSON output of a dry run.

    Raise RefusedError if the file is not a dry run of the same plan.
    """
    try:
        shown = [
            scm_pb2.ContainerDecision(
                container_id=int(str(found["container_id"])),
                code=str(found["code"]),
                world=int(str(found.get("world", 0))),
            )
            for found in read_decisions(path)
        ]
    except (ValueError, TypeError, KeyError) as error:
        raise not_this_plan(path, f"{type(error).__name__} {error}") from error
    ids = [row.container_id for row in rows]
    if ids != [decision.container_id for decision in shown]:
        raise not_this_plan(path, "its containers are others")
    return shown


def not_this_plan(path: Path, reason: str) -> RefusedError:
    """Return the error for a file that is not the output of a dry run of this plan."""
    return RefusedError(
        Code.MALFORMED_REQUEST,
        f"cannot read {path} as a dry run of this plan: {reason}",
        hint="give the output of the same command with --dry-run --json",
    )
