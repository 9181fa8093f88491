"""Carrying out a replicate command: push our replica to the target, and say what came of it.

share of the lease ─ one stream ─ the target's answer
    "it is here already"      done, nothing was to be done
    damage nobody declared    our replica is read whole now, and sent again with what was found
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

from agent.errors import Code, SutureError, Unavailable
from agent.ports import Executor, Leases, Pace, at_once
from agent.rpc.calls.peer import Peer
from agent.rpc.v1 import container_pb2, scm_pb2
from agent.rpc.wire import codec
from agent.runtime.memory import give_back
from agent.store.ports import SentReplicas
from agent.transfer.outgoing import Export
from merkle.replica import TREE_STATES, ContainerId

TIMEOUT_S: Final = 6 * 3600.0  # of one transfer, when its command has no deadline
LEFT_S_MIN: Final = 0.1  # of a deadline that has passed: the call says so itself
STALL_S: Final = 60.0  # without a part taken by the target; a disk may be slow, not so slow
FINISH_S: Final = 600.0  # after the last part: the target syncs all of it

Copy: TypeAlias = Callable[
    [scm_pb2.ReplicateCommand, Callable[[], bool], float], scm_pb2.ReplicateOutcome
]
"""Makes a copy in another way than the one below: command, whether to stop, seconds that it may
take. Raises SutureError."""

_TREE_STATE_NUMBERS: Final = frozenset(codec.state_number(state) for state in TREE_STATES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicator:
    """What every push of this datanode uses. `scan` reads a replica whole and returns whether what
    it found is kept; `on_damage` is told of news about our replica where that could not be done."""

    store: SentReplicas
    leases: Leases
    executor: Executor
    cluster_id: str
    datanode_id: str
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
        compress: bool,
        stop: Callable[[], bool],
        timeout_s: float = TIMEOUT_S,
    ) -> scm_pb2.ReplicateOutcome:
        """Push the replica of `container_id`, damaged or not. Raises SutureError.

        Damage that nobody knew of is found by a scan at once, and the second try declares it: it
        may be the best copy that there is, and it arrives marked. Where the scan finds none, and
        another root than the one that was reported, the rows are not those that were written:
        nothing is sent before the control plane has compared that root with the peers'.
        """
        begun_s = self.monotonic_s()
        self.store.replica(container_id)  # where there is none, nobody is called
        with self.leases.share(container_id):
            export = Export(
                store=self.store,
                container_id=container_id,
                cluster_id=self.cluster_id,
                datanode_id=self.datanode_id,
                executor=self.executor,
                compress=compress,
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
                give_back()
        outcome.duration_ms = int((self.monotonic_s() - begun_s) * 1000)
        return outcome

    def _read_again(self, container_id: ContainerId, error: SutureError) -> None:
        """Find out what is damaged here; raise `error` again where that is not possible now, or
        where the replica is whole and yet another than before."""
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
        self, export: Export, target: Peer, stop: Callable[[], bool], timeout_s: float
    ) -> scm_pb2.ReplicateOutcome:
        try:
            return self._push(export, target, stop, timeout_s)
        except SutureError as error:
            if error.code is Code.CHECKSUM_MISMATCH:
                self.on_damage(export.container_id, f"its export failed twice: {error}")
            raise

    def _push(
        self, export: Export, target: Peer, stop: Callable[[], bool], timeout_s: float
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
        """Return the outcome when the target has a closed replica of the same index already."""
        if error.code is not Code.CONTAINER_EXISTS:
            return None
        report: container_pb2.ReplicaReport = target.replica(container_id)
        ours = self.store.replica(container_id)
        same = report.replica_index == ours.replica_index and not report.load_error
        if not same or report.state not in _TREE_STATE_NUMBERS:
            return None
        return scm_pb2.ReplicateOutcome(result="already_there", replica=report)

    def _why(
        self, export: Export, watch: "StallWatch", target: Peer, error: SutureError
    ) -> SutureError:
        """Return the cause of a failed push."""
        cause = export.failure or error
        if watch.stalled:
            cause = Unavailable(
                Code.UNAVAILABLE,
                f"datanode at {target.address} took no data for {self.stall_s:g} s",
                container_id=export.container_id,
            )
        return cause


class Progress(Protocol):
    """A transfer under way."""

    @property
    def parts_count(self) -> int:
        """How many parts have passed."""
        ...

    @property
    def is_finished(self) -> bool:
        """Whether that was the last one."""
        ...


class StallWatch:
    """Notices that parts do not pass any more."""

    def __init__(
        self, export: Progress, monotonic_s: Callable[[], float], stall_s: float, finish_s: float
    ) -> None:
        self._export = export
        self._monotonic_s = monotonic_s
        self._stall_s = stall_s
        self._finish_s = finish_s
        self._seen = -1
        self._since_s = monotonic_s()
        self.stalled = False

    def has_stalled(self) -> bool:
        """Whether nothing was taken for too long; asked again and again."""
        now_s = self._monotonic_s()
        if self._export.parts_count != self._seen:
            self._seen, self._since_s = self._export.parts_count, now_s
        allowed_s = self._finish_s if self._export.is_finished else self._stall_s
        self.stalled = now_s - self._since_s > allowed_s
        return self.stalled
