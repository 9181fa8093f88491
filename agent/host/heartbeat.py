"""Heartbeats: they send this datanode's reports to the SCM, and receive commands of the SCM.

The worker registers this datanode, and sends a full report of all replicas in pages. Then it sends
a heartbeat at every interval, and immediately after a change. If the SCM requests it, the worker
registers again.

`agent.host.outbox` stores which replicas have changed, and the pending answers to commands. A
report is built when it is sent. Therefore, it is never outdated, even if the SCM was unavailable
for a long time.
"""

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import accumulate
from typing import Final

import structlog

from agent.host.datanode_identity import DatanodeIdentity
from agent.host.outbox import REGISTERED, Outbox
from agent.host.term_tracker import TermTracker
from agent.observe.datanode_status import DatanodeStatus
from merkle.replica import LAYOUT_VERSION, ContainerId
from suture.errors import Code, RefusedError, UnavailableError
from suture.runtime.backoff import jittered_backoff_s
from suture.runtime.clock import Clock
from suture.runtime.loop import Backoff, Busy, RetryAfter, Step
from suture.wire.clients.scm import ScmClient
from suture.wire.mapping.replica_columns import column_report
from suture.wire.v1 import scm_pb2

REPLICAS_PER_HEARTBEAT_MAX: Final = 5_000  # about 0.5 MB
STATUSES_PER_HEARTBEAT_MAX: Final = 500
STATUSES_BYTES_MAX: Final = 4 * 1024**2  # per heartbeat; gRPC limits the size of a message
LAST_COPIES_MAX: Final = 1_000  # maximum container ids that are used from one response
INTERVAL_S_MIN: Final = 0.05
FULL_REPORT_INTERVAL_S: Final = 3600.0
RETRY_S_MIN: Final = 0.2
RETRY_S_MAX: Final = 30.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RegistrationInfo:
    """The ids, the address and the rack with which this datanode registers."""

    who: DatanodeIdentity
    address: str
    rack: str


@dataclass(eq=False)
class HeartbeatWorker:
    """Worker that sends the content of an outbox to one SCM in heartbeats.

    `terms` records the election terms of all SCMs; the SCM with the highest term is the leader. Two
    heartbeats are at least `spacing_s` seconds apart, even if the worker is woken more often. After
    each response of the leader, `on_last_copies` is called with the containers of which only this
    datanode has a healthy replica. `on_rates` is called with the rate limits of copies and
    reconciles in bytes per second.
    """

    scm: ScmClient
    reporter: DatanodeStatus
    identity: RegistrationInfo
    on_commands: Callable[[Sequence[scm_pb2.Command], int], None]
    clock: Clock
    _: KW_ONLY
    outbox: Outbox
    terms: TermTracker = field(default_factory=TermTracker)
    name: str = "heartbeat"
    spacing_s: float = 0.0
    on_last_copies: Callable[[Sequence[int]], None] = lambda _: None
    on_rates: Callable[[int, int], None] = lambda _copies, _reconciles: None

    def __post_init__(self) -> None:
        self._sent_at_s = float("-inf")
        self._full: deque[ContainerId] | None = None
        self._full_ended = False  # True while a heartbeat sends the last page of the full report
        self._meanwhile: set[ContainerId] = set()
        self._full_id = 0
        self._full_page = 0
        self._full_due_s = 0.0
        self._interval_s = 1.0
        self._failures = 0
        self._is_registered = False

    @property
    def state(self) -> str:
        """`registered`, or the text of the last error."""
        return self.outbox.state

    def step(self) -> Step:
        """Register this datanode if necessary, then send one heartbeat."""
        wait_s = self._sent_at_s + self.spacing_s - self.clock.monotonic_s()
        if wait_s > 0:
            return Backoff(wait_s)
        if self.outbox.pop_reregister_request():
            self._is_registered = False
        try:
            if not self._is_registered:
                self._register()
            self._sent_at_s = self.clock.monotonic_s()
            more = self._send_heartbeat()
        except UnavailableError as error:
            return RetryAfter(self._retry_delay_s(error))
        except RefusedError as error:
            self._is_registered = False
            return RetryAfter(self._retry_delay_s(error))
        if self._failures:
            self.outbox.note_state(REGISTERED)
            log.info("scm_reachable", failures=self._failures)
        self._failures = 0
        return Busy() if more else RetryAfter(self._interval_s)

    def _retry_delay_s(self, error: RefusedError | UnavailableError) -> float:
        """Return the number of seconds until the next attempt.

        The delay grows exponentially and is random (full jitter). If the SCM is unreachable, the
        delay is at most the heartbeat interval, because a restarted SCM stays in safe mode until
        this datanode reports.
        """
        self._failures += 1
        self.outbox.note_state(f"{error.code.value}: {error}")
        if self._failures == 1:
            log.warning("scm_unreachable", error=str(error), code=error.code.value)
        longest_s = RETRY_S_MAX
        if error.code is Code.UNAVAILABLE:
            longest_s = min(longest_s, max(RETRY_S_MIN, self._interval_s))
        return jittered_backoff_s(self._failures, first_s=RETRY_S_MIN, longest_s=longest_s)

    def _register(self) -> None:
        registration, me = self.identity, self.identity.who
        state = self.reporter.node_state()
        answer = self.scm.register(
            scm_pb2.RegisterRequest(
                datanode_id=me.datanode_id,
                address=registration.address,
                rack=registration.rack,
                version=me.version,
                cluster_id=me.cluster_id,
                volumes=self.reporter.volumes(),
                boot_id=me.boot_id,
                op_state=state.op_state,
                op_expiry_ms=state.op_expiry_ms,
                layout_version=LAYOUT_VERSION,
                seen_starts=self._seen_starts(),
            )
        )
        if answer.cluster_id != me.cluster_id:
            raise RefusedError(
                Code.WRONG_CLUSTER,
                f"cannot join cluster {answer.cluster_id}: the volumes belong to cluster "
                f"{me.cluster_id}",
            )
        self._interval_s = max(INTERVAL_S_MIN, answer.heartbeat_interval_ms / 1000)
        self._is_registered = True
        self._full = None
        self._full_due_s = self.clock.monotonic_s()
        self.outbox.note_state(REGISTERED)
        log.info("agent_registered", cluster_id=answer.cluster_id)

    def _send_heartbeat(self) -> bool:
        """Send one heartbeat. Return True if more reports or answers are pending."""
        # Read the queues before the statuses. If a task ends in between, its answer is among the
        # statuses, so the SCM does not consider the task lost.
        queues = list(self.reporter.queues())
        statuses = self._statuses_to_send()
        changed: list[ContainerId] = []
        state = self.reporter.node_state()
        try:
            reports, column_reports = self._reports(changed)
            request = scm_pb2.HeartbeatRequest(
                datanode_id=self.identity.who.datanode_id,
                boot_id=self.identity.who.boot_id,
                volumes=self.reporter.volumes(),
                reports=reports,
                column_reports=column_reports,
                command_statuses=statuses,
                queues=queues,
                op_state=state.op_state,
                op_expiry_ms=state.op_expiry_ms,
                seen_starts=self._seen_starts(),
            )
            sent_at_ms = self.clock.now_ms()
            answer = self.scm.heartbeat(request)
        except BaseException:
            self._requeue_reports(changed)
            raise
        self.outbox.note_clocks(
            sent_at_ms=sent_at_ms,
            answered_at_ms=answer.answered_at_ms,
            received_at_ms=self.clock.now_ms(),
        )
        if answer.reregister:
            self._is_registered = False
            self._requeue_reports(changed)
            return True
        waiting = self.outbox.acknowledge(statuses)
        leads = self.terms.observe_term(answer.term, answer.start_id, answer.state_number)
        if leads:
            self.on_rates(answer.copy_bytes_per_s, answer.reconcile_bytes_per_s)
            self.on_last_copies(answer.sole_healthy_container_ids[:LAST_COPIES_MAX])
        if answer.commands and (leads or answer.term < self.terms.highest):
            self.on_commands(answer.commands, answer.term)  # those of a lower term are refused
        return waiting or self._full is not None

    def _seen_starts(self) -> list[scm_pb2.SeenStart]:
        return [
            scm_pb2.SeenStart(
                start_id=start.start_id, term=start.term, state_number=start.state_number
            )
            for start in self.terms.seen()
        ]

    def _statuses_to_send(self) -> list[scm_pb2.CommandStatus]:
        """Return the oldest pending answers to commands, as many as fit into one heartbeat.

        If any answer is pending, return at least one.
        """
        oldest = self.outbox.oldest_answers(STATUSES_PER_HEARTBEAT_MAX)
        sizes_bytes = accumulate(status.ByteSize() for status in oldest)
        count = sum(1 for size_bytes in sizes_bytes if size_bytes <= STATUSES_BYTES_MAX)
        return oldest[: max(count, 1)]

    def _reports(
        self, changed: list[ContainerId]
    ) -> tuple[list[scm_pb2.ContainerReport], list[scm_pb2.ColumnReport]]:
        """Return the reports for the next heartbeat: some as messages, the others as columns.

        Changed replicas are sent as messages, and their ids are added to `changed`. A page of a
        full report is sent as columns if possible.
        """
        reports: list[scm_pb2.ContainerReport] = []
        by_columns: list[scm_pb2.ColumnReport] = []
        self._full_ended = False
        changed += self.outbox.pop_changed(REPLICAS_PER_HEARTBEAT_MAX)
        self._meanwhile.update(changed)
        if changed:
            replicas = [
                self.reporter.report(container_id)
                for container_id in changed
                if not self.reporter.is_waiting(container_id)
            ]
            reports.append(scm_pb2.ContainerReport(full=False, last=True, replicas=replicas))
        page = self._full_report_page()
        self._full_ended = page is not None and page.last
        if page is not None:
            columns = self._by_columns(page)
            if columns is None:
                reports.append(page)
            else:
                by_columns.append(columns)
        if self._full_ended:
            self._tell_meanwhile()
        return reports, by_columns

    def _by_columns(self, page: scm_pb2.ContainerReport) -> scm_pb2.ColumnReport | None:
        """Return a page of a full report as columns.

        Return None if a replica has an invalid field. The caller then sends the page as messages,
        so that the SCM ignores only the invalid replica.
        """
        try:
            return column_report(page)
        except RefusedError:
            return None

    def _tell_meanwhile(self) -> None:
        """Queue another report of the replicas that changed while a full report was sent.

        The full report does not contain replicas that were created in this time. Without another
        report, the SCM might assume that they are deleted.
        """
        self.outbox.put_back(self._meanwhile)
        self._meanwhile.clear()

    def _requeue_reports(self, changed: Iterable[ContainerId]) -> None:
        """Put the changed replicas that the SCM has not acknowledged back into the queue.

        If a full report is in progress, it is restarted.
        """
        self.outbox.put_back(changed)
        if self._full is not None or self._full_ended:
            self._full = None
            self._full_due_s = self.clock.monotonic_s()

    def _full_report_page(self) -> scm_pb2.ContainerReport | None:
        """Return the next page of the full report. Return None if no full report is due or in
        progress. Return None while a lost index is rebuilt, because the report would lack the
        replicas that are not loaded yet."""
        if self.reporter.is_rebuilding:
            return None
        now_s = self.clock.monotonic_s()
        is_wanted = self.outbox.pop_full_report_request()
        if is_wanted:
            self._full = None  # restart a report in progress, which may name deleted replicas
        if self._full is None:
            if now_s < self._full_due_s and not is_wanted:
                return None
            self._full = deque(self.reporter.replica_ids())
            jitter = random.uniform(0.75, 1.0)  # noqa: S311 - so that a cluster's reports spread
            self._full_due_s = now_s + FULL_REPORT_INTERVAL_S * jitter
            self._meanwhile.clear()
            self._full_id += 1
            self._full_page = 0
        count = min(len(self._full), REPLICAS_PER_HEARTBEAT_MAX)
        page = scm_pb2.ContainerReport(
            full=True,
            report_id=self._full_id,
            page=self._full_page,
            last=count == len(self._full),
            replicas=[self.reporter.report(self._full.popleft()) for _ in range(count)],
        )
        self._full_page += 1
        if page.last:
            self._full = None
        return page
