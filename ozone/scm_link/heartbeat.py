"""Reports to one storage container manager (SCM) of Ozone, and fetches its commands.

    version ─► registration, with a full report ─► heartbeat every interval, at once with news
       ▲                                               │
       └──────────── "register again" ◄────────────────┘

Pending reports wait in `agent.host.outbox`. Their content is computed when they are sent. Each SCM
has its own worker thread. All SCMs receive the same reports. The agent executes only the commands
of the SCM with the highest term. It logs the commands of other SCMs, and answers them.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import structlog

from agent.config.options import OZONE_VERSIONS
from agent.host.external_control_plane import NEWS_SPACING_S, AgentServices
from agent.host.heartbeat import (
    FULL_REPORT_INTERVAL_S,
    REPLICAS_PER_HEARTBEAT_MAX,
    RETRY_S_MAX,
    RETRY_S_MIN,
    STATUSES_PER_HEARTBEAT_MAX,
)
from agent.host.outbox import REGISTERED, Outbox
from merkle.replica import ContainerId
from ozone.scm_link import command_translation, messages, reports
from ozone.scm_link.ozone_roots import RootCache
from ozone.scm_link.protocol import DatanodeProtocol, text_of
from ozone.scm_link.reports import NAMES, DatanodeInfo
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.backoff import jittered_backoff_s
from suture.runtime.loop import Busy, RetryAfter, Step
from suture.wire.v1 import container_pb2, scm_pb2

CLUSTER: Final = b"clusterID"  # OzoneConsts.CLUSTER_ID
NAME_OF: Final = {order: name for name, order in NAMES.items()}

log = structlog.get_logger()


def cluster_of(version: Any) -> str:
    """Return the cluster id in the SCM's answer to a version request.

    Raise RefusedError if the answer has none.
    """
    for item in version.keys:
        if item.key == CLUSTER and item.value:
            return text_of(item.value)
    raise RefusedError(Code.MALFORMED_REQUEST, "Ozone's SCM sent no cluster id")


def check_cluster(theirs: str, ours: str, *, address: str) -> None:
    """Raise RefusedError if the cluster of the SCM is not the cluster of the local volumes."""
    if theirs != ours:
        raise RefusedError(
            Code.WRONG_CLUSTER,
            f"cannot join cluster {theirs} of {address}: the volumes belong to cluster {ours}",
            hint="check node.scm",
        )


@dataclass(eq=False)
class OzoneHeartbeat:
    """The worker that sends heartbeats to one SCM.

    `before` is called before each heartbeat, to renew certificates. If `uses_host_names`, peers in
    commands are called by name, otherwise by IP address.
    """

    calls: DatanodeProtocol
    me: DatanodeInfo
    led: AgentServices
    _: KW_ONLY
    outbox: Outbox
    leads: Callable[[int], bool]
    address: str
    name: str
    interval_s: float
    before: Callable[[], None]
    uses_host_names: bool

    def __post_init__(self) -> None:
        self._roots = RootCache(self.led.store)
        self._indexes: dict[int, int] = {}  # of shards, kept until a removal is reported
        self._is_registered = False
        self._full_due_s = 0.0
        self._sent_at_s = float("-inf")
        self._failures = 0

    def step(self) -> Step:
        """Register if needed, then send one heartbeat."""
        wait_s = self._sent_at_s + NEWS_SPACING_S - self.led.clock.monotonic_s()
        if wait_s > 0:
            return RetryAfter(wait_s)
        self.before()
        if self.outbox.pop_reregister_request():
            self._is_registered = False
        try:
            if not self._is_registered:
                self._register()
            self._sent_at_s = self.led.clock.monotonic_s()
            more = self._send_heartbeat()
        except (RefusedError, UnavailableError) as error:
            self._is_registered &= isinstance(error, UnavailableError)
            return RetryAfter(self._retry_delay_s(error))
        if self._failures:
            self.outbox.note_state(REGISTERED)
            log.info("scm_reachable", scm=self.address, failures=self._failures)
        self._failures = 0
        return Busy() if more else RetryAfter(self.interval_s)

    def _retry_delay_s(self, error: SutureError) -> float:
        """Count a failure. Return the pause before the next attempt, in seconds.

        The pause grows with the number of failures up to the heartbeat interval, and has a random
        part.
        """
        self._failures += 1
        self.outbox.note_state(f"{error.code.value}: {error}")
        if self._failures == 1:
            log.warning(
                "scm_unreachable", scm=self.address, error=str(error), code=error.code.value
            )
        longest_s = max(RETRY_S_MIN, min(RETRY_S_MAX, self.interval_s))
        return jittered_backoff_s(self._failures, first_s=RETRY_S_MIN, longest_s=longest_s)

    # Sending reports.

    def _register(self) -> None:
        theirs = cluster_of(self.calls.get_version())
        check_cluster(theirs, self.led.who.cluster_id, address=self.address)
        self.outbox.pop_full_report_request()  # this registration includes a full report
        message = messages.REGISTER(
            extended_details=reports.extended_details(self.me, self._details()),
            node=self._node(),
            containers=messages.REPLICAS(replicas=self._replicas(self._all())),
            pipelines=messages.PIPELINE_REPORTS(),
            layout=reports.layout(self.me),
        )
        answer = self.calls.register(message)
        if answer.error != messages.REGISTERED:
            raise RefusedError(
                Code.INELIGIBLE,
                f"{self.address} rejected the registration: {self._why(answer.error)}",
                hint="set ozone.layout_version to the version of the manager's Ozone",
            )
        check_cluster(text_of(answer.cluster_id), self.led.who.cluster_id, address=self.address)
        self._is_registered = True
        self._plan_full_report()
        self.outbox.note_state(REGISTERED)
        log.info("agent_registered", scm=self.address, cluster_id=theirs)

    def _why(self, error: int) -> str:
        """Return the reason why the SCM rejected the registration, as a text."""
        if error != messages.NOT_PERMITTED:
            return f"error {error}"
        ours = self.me.layout_version
        numbers, versions = ", ".join(map(str, OZONE_VERSIONS)), ", ".join(OZONE_VERSIONS.values())
        return (
            f"its software does not have layout version {ours} (Ozone "
            f"{OZONE_VERSIONS.get(ours, 'unknown')}): {numbers} are {versions}"
        )

    def _send_heartbeat(self) -> bool:
        """Send one heartbeat. Return True if more reports are waiting."""
        # Read the queues first: if a command leaves them meanwhile, its answer is among the
        # statuses.
        queues = reports.queue_report(self.led.reporter.queues())
        statuses = self.outbox.oldest_answers(STATUSES_PER_HEARTBEAT_MAX)
        is_full_due = self.outbox.pop_full_report_request() or self._is_full_due()
        changed = self.outbox.pop_changed(REPLICAS_PER_HEARTBEAT_MAX)
        try:
            message = messages.HEARTBEAT(
                details=self._details(),
                node=self._node(),
                statuses=[reports.status_reports(self.me, statuses)],
                pipelines=messages.PIPELINE_REPORTS(),
                layout=reports.layout(self.me),
                queues=queues,
            )
            if is_full_due:
                message.containers.SetInParent()
                message.containers.replicas.extend(self._replicas(self._all()))
            if changed:
                self._add_changed(message, changed)
            answer = self.calls.heartbeat(message)
        except BaseException:
            self.outbox.put_back(changed)
            if is_full_due:
                self._full_due_s = self.led.clock.monotonic_s()
            raise
        if is_full_due:
            self._plan_full_report()
        self._forget(message.changed)
        waiting = self.outbox.acknowledge(statuses)
        self._obey(answer)
        return waiting or not self._is_registered

    def _add_changed(self, message: Any, changed: Iterable[ContainerId]) -> None:
        told = list(self._replicas(changed))
        message.changed.add(replicas=told)
        wishes = reports.actions(told, self.led.config.storage.container_bytes_max)
        if wishes is not None:
            message.actions.CopyFrom(wishes)

    def _details(self) -> Any:
        self.calls.connect()
        state = self.led.reporter.node_state()
        return reports.details(self.me, self.calls.local_host, state)

    def _node(self) -> Any:
        return reports.node_report(self.me, self.led.reporter.volumes())

    def _all(self) -> Iterable[ContainerId]:
        return self.led.reporter.replica_ids()

    def _replicas(self, container_ids: Iterable[ContainerId]) -> Iterator[Any]:
        for container_id in container_ids:
            report = self.led.reporter.report(container_id)
            self._name_shard(report)
            told = reports.replica(self.me, report, self._roots.root(report))
            if told is not None:
                yield told

    def _name_shard(self, report: container_pb2.ReplicaReport) -> None:
        """Add the shard index to the report of a removed replica.

        The SCM ignores such a report without an index, and would continue to count the removed
        replica.
        """
        if report.state == container_pb2.DELETED:
            report.replica_index = self._indexes.get(report.container_id, 0)
        elif report.replica_index:
            self._indexes[report.container_id] = report.replica_index

    def _forget(self, told: Iterable[Any]) -> None:
        """Forget the shard indexes of removed replicas.

        `told` are the reports that the SCM has received.
        """
        for changed in told:
            for one in changed.replicas:
                if one.state == messages.State.DELETED:
                    self._indexes.pop(one.container_id, None)

    def _is_full_due(self) -> bool:
        return self.led.clock.monotonic_s() >= self._full_due_s

    def _plan_full_report(self) -> None:
        jitter = random.uniform(0.75, 1.0)  # noqa: S311 - so that a cluster's reports spread
        self._full_due_s = self.led.clock.monotonic_s() + FULL_REPORT_INTERVAL_S * jitter

    # Receiving commands.

    def _obey(self, answer: Any) -> None:
        if answer.term > 0:
            self.leads(answer.term)
        accepted: list[scm_pb2.Command] = []
        for command in answer.commands:
            if self.uses_host_names:
                command_translation.prefer_host_names(command)
            meant = command_translation.translate_command(command, self.led.clock.now_ms())
            if isinstance(meant, command_translation.Reregister):
                self._is_registered = False  # register with the SCM that sent it, leader or not
            elif isinstance(meant, command_translation.UnknownCommand):
                log.warning("ozone_command_unknown", scm=self.address, type=meant.number)
            elif not self.leads(max(0, command.term)):
                self._answer_stale(meant)
            elif isinstance(meant, command_translation.ImmediateAnswer):
                self._answer(meant)
            elif self._is_other_shard(meant):
                self._refuse_shard(meant)
            else:
                accepted.append(meant.command)
        if accepted:
            self.led.accept(accepted, max(command.term for command in accepted))

    def _answer_stale(
        self, meant: command_translation.TranslatedCommand | command_translation.ImmediateAnswer
    ) -> None:
        """Report to the SCM that the agent does not execute a command.

        The reason is that the sender of the command is not the leader.
        """
        status = _status_of(meant)
        status.state, status.code = scm_pb2.CommandStatus.SKIPPED, Code.STALE_TERM.value
        log.warning(
            "ozone_command_stale", scm=self.address, command_id=status.command_id, type=status.type
        )
        self.led.answer(status)

    def _answer(self, meant: command_translation.ImmediateAnswer) -> None:
        status = _status_of(meant)
        if meant.why:
            status.state, status.code = scm_pb2.CommandStatus.FAILED, meant.code.value
            status.message = meant.why
            if meant.order is messages.ScmCommandType.CREATE_PIPELINE:
                log.warning(
                    "ozone_pipeline_rejected", scm=self.address, command_id=meant.command_id
                )
            else:
                log.warning(
                    "ozone_command_rejected",
                    scm=self.address,
                    command_id=meant.command_id,
                    type=status.type,
                    why=meant.why,
                )
        self.led.answer(status)

    def _is_other_shard(self, meant: command_translation.TranslatedCommand) -> bool:
        """Return whether a command names another replica index than that of the local replica."""
        if not meant.replica_index:
            return False
        try:
            mine = self.led.store.replica(ContainerId(_status_of(meant).container_id))
        except SutureError:
            return False  # no replica: executing the command will report that
        return mine.replica_index != meant.replica_index

    def _refuse_shard(self, meant: command_translation.TranslatedCommand) -> None:
        told = _status_of(meant)
        self._answer(
            command_translation.ImmediateAnswer(
                NAMES[told.type],
                told.command_id,
                told.container_id,
                f"the replica here is not shard {meant.replica_index}",
            )
        )


def _status_of(
    meant: command_translation.TranslatedCommand | command_translation.ImmediateAnswer,
) -> scm_pb2.CommandStatus:
    """Return a status message for a command, with the state EXECUTED."""
    state = scm_pb2.CommandStatus.EXECUTED
    if isinstance(meant, command_translation.ImmediateAnswer):
        return scm_pb2.CommandStatus(
            command_id=meant.command_id,
            type=NAME_OF[meant.order],
            container_id=meant.container_id,
            state=state,
        )
    kind = meant.command.WhichOneof("command")
    assert kind is not None, "what is accepted has been filled in"
    return scm_pb2.CommandStatus(
        command_id=meant.command.command_id,
        type=kind,
        container_id=getattr(getattr(meant.command, kind), "container_id", 0),
        state=state,
    )
