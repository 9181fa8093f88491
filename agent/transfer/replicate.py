"""Executes a replicate command: sends the local replica to the target, and returns the outcome.

The sender shares the container's lease and sends one stream. If the target already has the replica,
the command succeeds without a transfer. If the target finds damage that the sender has not
declared, the sender scans the complete replica and sends it again with the findings.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from agent.store.replica_store import ReplicaStore
from agent.transfer.outgoing import ReplicaExport
from merkle.replica import TREE_STATES, ContainerId
from suture.errors import Code, SutureError, UnavailableError
from suture.runtime.memory import trim_heap
from suture.runtime.ports import Executor, Leases, Pace, at_once
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, scm_pb2

TIMEOUT_S: Final = 6 * 3600.0  # limit of a transfer whose command has no deadline
LEFT_S_MIN: Final = 0.1  # timeout if the deadline has passed; the call then fails
STALL_S: Final = 60.0  # longest time until the target accepts a message, even with a slow disk
FINISH_S: Final = 600.0  # longest time after the last message, while the target syncs

Copy: TypeAlias = Callable[
    [scm_pb2.ReplicateCommand, Callable[[], bool], float], scm_pb2.ReplicateOutcome
]
"""Function that sends a replica by another protocol than Suture's.

Its arguments are the command, a function that returns True if the copy must stop, and a timeout in
seconds. It raises SutureError if the copy fails.
"""

_TREE_STATE_NUMBERS: Final = frozenset(map(container_pb2.ReplicaState.Value, TREE_STATES))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicator:
    """Sends copies of replicas to other datanodes.

    `scan` is a function that scans a complete replica, and returns True if the result was
    committed. `on_damage` is called with the container id and a reason if this scan was not
    committed, or if the target still finds undeclared damage after the scan.
    """

    store: ReplicaStore
    leases: Leases
    executor: Executor
    monotonic_s: Callable[[], float]
    scan: Callable[[ContainerId], bool]
    on_damage: Callable[[ContainerId, str], None]
    stall_s: float = STALL_S
    finish_s: float = FINISH_S
    pace: Pace = at_once

    def replicate(
        self,
        container_id: ContainerId,
        target: Peer,
        *,
        stop: Callable[[], bool],
        timeout_s: float = TIMEOUT_S,
    ) -> scm_pb2.ReplicateOutcome:
        """Send the replica of a container to `target`, even if the replica is damaged.

        If the target finds undeclared damage, the replica is scanned and sent a second time with
        the findings, because no better replica may exist. There is one exception: if the scan finds
        no damage, but the root has changed, then the rows have changed since they were written. In
        this case, the replica is not sent, so that the control plane can first compare the new root
        with the other replicas. Raise SutureError if the replica was not sent.
        """
        begun_s = self.monotonic_s()
        self.store.replica(container_id)  # raises before any call if there is no replica
        with self.leases.share(container_id):
            export = ReplicaExport(
                store=self.store,
                container_id=container_id,
                executor=self.executor,
                stop=stop,
                pace=self.pace,
            )
            again = replace(export)
            try:
                outcome = self._push(export, target, stop, timeout_s)
            except SutureError as error:
                if error.code is not Code.CHECKSUM_MISMATCH or stop():
                    raise
                self._read_again(container_id, error)
                left_s = max(timeout_s - (self.monotonic_s() - begun_s), LEFT_S_MIN)
                outcome = self._push_again(again, target, stop, left_s)
            finally:
                trim_heap()
        outcome.duration_ms = int((self.monotonic_s() - begun_s) * 1000)
        return outcome

    def _read_again(self, container_id: ContainerId, error: SutureError) -> None:
        """Scan the local replica to find its damage.

        Raise `error` if the scan could not be committed. Also raise it if the scan found no damage,
        but the root of the tree is now different.
        """
        before = self.store.replica(container_id)
        try:
            is_kept = self.scan(container_id)
        except SutureError:
            is_kept = False
        if not is_kept:
            self.on_damage(container_id, f"its export failed: {error}")
            raise error
        after = self.store.replica(container_id)
        is_other = (before.tree and before.tree.root) != (after.tree and after.tree.root)
        if is_other and not after.finding_count:
            raise error

    def _push_again(
        self, export: ReplicaExport, target: Peer, stop: Callable[[], bool], timeout_s: float
    ) -> scm_pb2.ReplicateOutcome:
        try:
            return self._push(export, target, stop, timeout_s)
        except SutureError as error:
            if error.code is Code.CHECKSUM_MISMATCH:
                self.on_damage(export.container_id, f"its export failed twice: {error}")
            raise

    def _push(
        self, export: ReplicaExport, target: Peer, stop: Callable[[], bool], timeout_s: float
    ) -> scm_pb2.ReplicateOutcome:
        watch = StallWatch(export, self.monotonic_s, self.stall_s, self.finish_s)
        try:
            answer = target.import_container(
                export.stream(),
                timeout_s=timeout_s,
                must_end=lambda: stop() or watch.has_stalled(),
            )
        except SutureError as error:
            there = self._already_there(export.container_id, target, error)
            if there is not None:
                return there
            raise self._why(export, watch, target, error) from error
        return scm_pb2.ReplicateOutcome(
            result="imported",
            bytes_sent=export.data_bytes,
            block_count=export.block_count,
            damaged_chunk_count=answer.damaged_chunk_count,
            replica=answer.replica,
        )

    def _already_there(
        self, container_id: ContainerId, target: Peer, error: SutureError
    ) -> scm_pb2.ReplicateOutcome | None:
        """Return the outcome if the target already has a closed replica with the same index,
        otherwise None."""
        if error.code is not Code.CONTAINER_EXISTS:
            return None
        report: container_pb2.ReplicaReport = target.replica(container_id)
        ours = self.store.replica(container_id)
        same = report.replica_index == ours.replica_index and not report.load_error
        if not same or report.state not in _TREE_STATE_NUMBERS:
            return None
        return scm_pb2.ReplicateOutcome(result="already_there", replica=report)

    def _why(
        self, export: ReplicaExport, watch: "StallWatch", target: Peer, error: SutureError
    ) -> SutureError:
        """Return the error that describes why a transfer has failed."""
        cause = export.failure or error
        if watch.stalled:
            cause = UnavailableError(
                Code.UNAVAILABLE,
                f"datanode at {target.address} accepted no data for {self.stall_s:g} s",
                container_id=export.container_id,
            )
        return cause


class TransferProgress(Protocol):
    """The progress of a running transfer."""

    @property
    def parts_count(self) -> int:
        """Number of messages that were sent."""
        ...

    @property
    def is_finished(self) -> bool:
        """True if the last message was sent."""
        ...


@dataclass(eq=False)
class StallWatch:
    """Detects a transfer without progress.

    A transfer has no progress if the target accepts no message for `stall_s` seconds, or if the
    target does not finish within `finish_s` seconds after the last message.
    """

    export: TransferProgress
    monotonic_s: Callable[[], float]
    stall_s: float
    finish_s: float

    def __post_init__(self) -> None:
        self._seen = -1
        self._since_s = self.monotonic_s()
        self.stalled = False

    def has_stalled(self) -> bool:
        """Return whether the transfer has made no progress for too long. The caller calls this
        repeatedly."""
        now_s = self.monotonic_s()
        if self.export.parts_count != self._seen:
            self._seen, self._since_s = self.export.parts_count, now_s
        allowed_s = self.finish_s if self.export.is_finished else self.stall_s
        self.stalled = now_s - self._since_s > allowed_s
        return self.stalled
