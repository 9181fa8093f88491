"""`suture ozone reconcile`: sends the reconcile rows of a plan to Ozone's SCM one by one.

For each row, the SCM orders the datanodes of a container to compare their replicas, as with `ozone
admin container reconcile`. The datanodes repair chunks that differ from the tree of a peer.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import pyarrow
import pyarrow.parquet

from health.reconcile_eligibility import COMMIT_ID_BEHIND
from ozone.clients.frames import Failure
from ozone.clients.messages import ScmRequestType
from ozone.clients.scm import OzoneScmClient, request
from suture.errors import Code, RefusedError
from suture.wire.mapping.plan_file import FinishedRun, read_plan, unreadable

MINUTE_S: Final = 60.0
EXPLAINED: Final = "EXPLAINED"
"""Checksum class of containers whose replicas report different roots although their data is
equal."""

EXPIRED_SINCE: Final = "it expired while others were ordered: verify a fresh snapshot"


class RowOutcome(StrEnum):
    """The outcome of one row of the plan, for example that the SCM rejected it."""

    SHOWN = "SHOWN"  # not sent, because of the dry run
    ORDERED = "ORDERED"  # the SCM has ordered the datanodes to reconcile
    REFUSED = "REFUSED"  # the SCM rejected it, with a reason
    NOT_KNOWN = "NOT_KNOWN"  # sent, but no answer came
    NOT_SENT = "NOT_SENT"  # the run was stopped before this row
    EXPIRED = "EXPIRED"  # the plan is too old
    EXPLAINED = "EXPLAINED"  # there is no difference that Ozone could repair


@dataclass(frozen=True, slots=True)
class ReconcileRow:
    """A row of the plan: a container to reconcile."""

    container_id: int
    reason: str
    checksum_class: str
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The reconcile rows of a finished run of `suture-verify`, the most urgent first."""

    run_id: str
    cluster_id: str
    rows: tuple[ReconcileRow, ...]


@dataclass(slots=True)
class ReconcileReport:
    """The progress of a reconcile: the plan, and the outcomes so far, by container id."""

    plan: Plan
    is_dry_run: bool
    outcomes: dict[int, tuple[RowOutcome, str]] = field(default_factory=dict)

    def counts(self) -> Counter[RowOutcome]:
        """Return how many rows had each outcome."""
        return Counter(outcome for outcome, _ in self.outcomes.values())

    @property
    def is_begun(self) -> bool:
        """True if any row was sent to the SCM."""
        sent = {RowOutcome.ORDERED, RowOutcome.REFUSED, RowOutcome.NOT_KNOWN}
        return not sent.isdisjoint(self.counts())

    def sent(self) -> dict[str, str]:
        """Return the ids of the containers whose reconcile the SCM has or may have ordered.

        The key is `ordered` for the first, and `not_known` for the second. Errors show these facts.
        """
        return {
            outcome.value.lower(): ",".join(
                str(key) for key, (own, _) in self.outcomes.items() if own is outcome
            )
            for outcome in (RowOutcome.ORDERED, RowOutcome.NOT_KNOWN)
        }

    @property
    def is_unfinished(self) -> bool:
        """True if a row has an outcome that requires an action of the operator."""
        return bool(self.counts().keys() - {RowOutcome.ORDERED, RowOutcome.EXPLAINED})

    def facts(self) -> dict[str, Any]:
        """Return the outcomes of all rows, for the JSON output."""
        counts = self.counts()
        return {
            "run_id": self.plan.run_id,
            "cluster_id": self.plan.cluster_id,
            "is_dry_run": self.is_dry_run,
            "outcomes": {outcome.value: counts[outcome] for outcome in RowOutcome},
            "orders": [
                {
                    "container_id": row.container_id,
                    "reason": row.reason,
                    "checksum_class": row.checksum_class,
                    "outcome": self.outcomes[row.container_id][0].value,
                    "message": self.outcomes[row.container_id][1],
                }
                for row in self.plan.rows
            ],
        }


def reconcile_plan(run: FinishedRun) -> Plan:
    """Return the reconcile rows in the result of a `suture-verify` run.

    Raise RefusedError if the result cannot be read.
    """
    request_read = read_plan(run, only="reconcile")
    summary = run.json_object("summary.json")
    try:
        told = run.rows("reconcile_plan", ("container_id", "checksum_class"))
        classes = {row["container_id"]: row["checksum_class"] for row in told}
        return Plan(
            run_id=request_read.run_id,
            cluster_id=str(summary["cluster_id"]),
            rows=tuple(
                ReconcileRow(
                    row.container_id, row.reason, classes[row.container_id], row.expires_at_ms
                )
                for row in request_read.rows
            ),
        )
    except (OSError, ValueError, KeyError, TypeError, pyarrow.ArrowException) as error:
        raise unreadable(run.name, error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """The options of a reconcile: the plan, and the number of containers per minute."""

    client: OzoneScmClient
    plan: Plan
    is_dry_run: bool
    per_minute: float
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    wait: Callable[[float], None] = time.sleep


def reconcile(wish: ReconcileOptions, orders: ReconcileReport, told: Callable[[], None]) -> None:
    """Send the rows of a plan, add each outcome to `orders`, and call `told` after each row.

    Raise RefusedError if the plan is for another cluster, and UnavailableError if no SCM answers.
    Then `orders` has the outcomes of the rows before the error.
    """
    for row in wish.plan.rows:
        orders.outcomes[row.container_id] = (RowOutcome.NOT_SENT, "")
    cluster_id = str(wish.client.call(ScmRequestType.GET_SCM).get_scm.cluster_id)
    if cluster_id != wish.plan.cluster_id:
        raise RefusedError(
            Code.WRONG_CLUSTER,
            f"cannot apply the plan: it is for cluster {wish.plan.cluster_id}, and "
            f"{wish.client.leader} leads {cluster_id}",
            hint="check the addresses",
        )
    wanted = []
    for row in wish.plan.rows:
        left_out = _left_out(row, wish.now_ms())
        if left_out is None and not wish.is_dry_run:
            wanted.append(row)
            continue
        orders.outcomes[row.container_id] = left_out or (RowOutcome.SHOWN, "")
        told()

    def leave_out(row: ReconcileRow) -> None:
        orders.outcomes[row.container_id] = (RowOutcome.EXPIRED, EXPIRED_SINCE)
        told()

    given = wish.client.order_each(
        _paced(wanted, wish, leave_out),
        lambda key: request(ScmRequestType.RECONCILE, container_id=key),
    )
    for container_id, answer in given:
        orders.outcomes[container_id] = _outcome(answer)
        told()


def _left_out(row: ReconcileRow, now_ms: int) -> tuple[RowOutcome, str] | None:
    if row.checksum_class == EXPLAINED:
        return RowOutcome.EXPLAINED, "roots differ, and the replicas hold the same"
    if row.reason.split("; ")[0] == COMMIT_ID_BEHIND:  # if this reason is first, it is the only one
        return (
            RowOutcome.EXPLAINED,
            "Ozone takes over no commit id where trees are equal (HDDS-16011)",
        )
    if _is_expired(row, now_ms):
        return RowOutcome.EXPIRED, "verify a fresh snapshot"
    return None


def _paced(
    wanted: Sequence[ReconcileRow],
    wish: ReconcileOptions,
    leave_out: Callable[[ReconcileRow], None],
) -> Iterator[int]:
    """Yield the container ids of the rows in the order of the plan.

    At most `per_minute` ids are yielded per minute. If a row has expired, call `leave_out` with the
    row instead, without waiting.
    """
    pause_s = 0.0
    for row in wanted:
        if pause_s and not _is_expired(row, wish.now_ms()):
            wish.wait(pause_s)
            pause_s = 0.0
        if _is_expired(row, wish.now_ms()):
            leave_out(row)
            continue
        yield row.container_id
        pause_s = MINUTE_S / wish.per_minute


def _is_expired(row: ReconcileRow, now_ms: int) -> bool:
    return row.expires_at_ms < now_ms


def _outcome(answer: Any) -> tuple[RowOutcome, str]:
    if not isinstance(answer, Failure):
        return RowOutcome.ORDERED, ""
    if answer.is_not_known:
        return RowOutcome.NOT_KNOWN, answer.text
    return RowOutcome.REFUSED, answer.text
