"""Scan of one container, used by all kinds of scans.

The scan reads the state of the replica while it holds the container's lease. It reads and checks
the data without a lease, and commits the result with the lease. It commits only if the replica has
not changed since the scan began. Therefore, a scan that takes hours does not block writes, repairs
or deletes. An interrupted scan may store its position in the index, and the next scan continues
there.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from agent.leases import ContainerLeases
from agent.scan.shadow.hashing import OpenReader, ShadowHashing
from agent.store.direct_io import ReadBuffers
from agent.store.index.columns import ReplicaColumns
from agent.store.index.facts import ReplicaFacts, ScanBase, ScanCommit
from agent.store.index.rows import ScanCursor
from agent.store.replica_store import ReplicaStore
from agent.store.scan_reader import StoreReplicaReader
from merkle.checksum import Algorithm
from merkle.replica import ContainerId
from scanner.breaker import Breaker
from scanner.chunk_verdict import is_lasting
from scanner.finding import ScanFinding, Verdict
from scanner.ports import ReadSplitting
from scanner.replica_scan import CHANGED, STOPPED, scan_replica
from scanner.resume import ScanMark, no_mark
from scanner.scan_outcome import ScanOutcome
from suture.errors import BlockFailed, Code, VolumeFailed
from suture.runtime.clock import Clock, SystemClock
from suture.runtime.memory import UNLIMITED, MemoryBudget

SCAN_ATTEMPTS_MAX: Final = 2  # after that, a replica that keeps changing waits for a later scan
LEASE_WAIT_S: Final = 30.0
BREAKER: Final = "breaker: "  # prefix of the reason: the breaker suspects this host
SHADOW: Final = "shadow: "  # prefix of the reason: shadow hashing after an upgrade differed
SCAN_BYTES: Final = 8 * 1024**2  # memory of a running scan: the data of one read, and its rows
CURSOR_BYTES: Final = 32 * 1024**2  # maximum bytes between two cursors, which may be read twice
CURSOR_S: Final = 5.0  # longest time between two cursors
GONE: Final = frozenset({Code.CONTAINER_NOT_FOUND, Code.UNCLOSED_CONTAINER_IO})

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ScanReport:
    """Result of the scan of one container.

    `findings` is bounded as `scanner.replica_scan` describes, and `finding_count` is the number of
    all findings. If `committed` is False, no tree was stored, and `tripped_reason` is the reason.
    If a scan was stopped after it had found damage, its findings are stored without a tree.
    """

    container_id: ContainerId
    commit: ScanCommit
    bytes_read: int
    finding_count: int
    findings: tuple[ScanFinding, ...]
    tripped_reason: str = ""

    @property
    def committed(self) -> bool:
        """Return whether the store has committed a complete result."""
        return self.commit.committed


class VerdictBreaker:
    """Circuit breaker for the results of scans, shared by all scanning threads of the process.

    If scans report so much damage that this host, not its disks, is the probable cause, results
    with damage are not committed for some time: the breaker holds them back.
    """

    def __init__(self, breaker: Breaker | None = None, clock: Clock | None = None) -> None:
        self._breaker = breaker or Breaker()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()

    @property
    def window_s(self) -> float:
        """Number of seconds for which the breaker counts the result of a scan."""
        return self._breaker.window_s

    def record_scan(self, volume_id: str, container_id: ContainerId, outcome: ScanOutcome) -> str:
        """Count a finished scan.

        Return the reason if its result, with damage, must not be committed. Return "" if the result
        may be committed.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            return self._breaker.record_scan(now_s, volume_id, container_id, outcome)

    def tripped_reason(self) -> str:
        """Return the reason if results of scans with damage are held back now.

        Return "" if they may be committed.
        """
        with self._lock:
            return self._breaker.tripped_reason(self._clock.monotonic_s())


class ScannedStore(Protocol):
    """Operations of a store that a scan needs.

    `agent.store.replica_store.ReplicaStore` and the bridge to Ozone implement them.
    """

    @property
    def algorithm(self) -> Algorithm:
        """Checksum algorithm of new trees."""
        ...

    def volume_id(self, container_id: ContainerId, /) -> str:
        """Return the id of the volume that has the replica."""
        ...

    def columns(self, volume_id: str = "", /) -> Iterable[tuple[str, ReplicaColumns]]:
        """Yield (volume id, its replicas as columns) for each volume.

        If `volume_id` is not "", yield only this volume.
        """
        ...

    def begin_scan(self, container_id: ContainerId, /) -> ScanBase:
        """Return the state of the replica at the start of a scan.

        Raise RefusedError if it cannot be scanned.
        """
        ...

    def generation(self, container_id: ContainerId, /) -> int:
        """Return the generation of the replica, which increases with every change of its data."""
        ...

    def kept_cursor(self, container_id: ContainerId, /) -> ScanCursor | None:
        """Return the progress of an interrupted scan, or None if there is none."""
        ...

    def keep_cursor(self, container_id: ContainerId, cursor: ScanCursor, /) -> None:
        """Store the progress of a scan."""
        ...

    def log_verdict(self, base: ScanBase, outcome: ScanOutcome, /, *, why: str) -> None:
        """Write the result of a scan to the verification log, before the agent acts on the result.

        `why` is the reason if the result is held back, which means that it is not committed.
        Otherwise, `why` is "".
        """
        ...

    def commit_scan(self, base: ScanBase, outcome: ScanOutcome, /) -> ScanCommit:
        """Make the result of a scan durable, if the replica has not changed since `begin_scan`."""
        ...


S_co = TypeVar("S_co", bound=ScannedStore, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanDeps(ABC, Generic[S_co]):
    """Services shared by all scans of a store.

    `on_unreadable` gets the id of a volume with failed reads, and the reason. `on_damage` gets the
    volume id and the damage that a scan found, unless the circuit breaker (`guard`) suspects this
    host. `shadow` computes the checksums of a sample of the reads a second time, after an upgrade.
    """

    store: S_co
    leases: ContainerLeases
    guard: VerdictBreaker = field(default_factory=VerdictBreaker)
    memory: MemoryBudget = UNLIMITED
    clock: Clock = field(default_factory=SystemClock)
    lease_wait_s: float = LEASE_WAIT_S
    on_unreadable: Callable[[str, str], None] = lambda _volume_id, _reason: None
    on_damage: Callable[[str, Sequence[ScanFinding]], None] = lambda _volume_id, _findings: None
    shadow: ShadowHashing | None = None

    @abstractmethod
    def open_reader(
        self,
        base: ScanBase,
        *,
        buffers: ReadBuffers | None,
        pieces: ReadSplitting | None,
        insists: bool,
    ) -> OpenReader:
        """Open the replica of this scan for reading. Raise SutureError if it cannot be opened."""


class StoreScanDeps(ScanDeps[ReplicaStore]):
    """Services shared by all scans of the agent's own store."""

    def open_reader(self, base: ScanBase, **options: Any) -> StoreReplicaReader:
        """Open a replica of the store for reading.

        Raise VolumeFailed, BlockFailed or RefusedError if it cannot be opened.
        """
        return StoreReplicaReader(self.store, base.facts.container_id, base, **options)


def _never() -> bool:
    return False


def ignore(_length_bytes: int) -> None:
    """Do nothing. This is the default of the `pace` and `progress` callbacks of a scan."""


def scan_container(
    tools: ScanDeps[ScannedStore],
    container_id: ContainerId,
    *,
    stop: Callable[[], bool] = _never,
    progress: Callable[[int], None] = ignore,
    pace: Callable[[int], None] = ignore,
    buffers: ReadBuffers | None = None,
    holds_lease: bool = False,
    resumable_s: float = 0.0,
    pieces: ReadSplitting | None = None,
    is_drill: bool = False,
) -> ScanReport:
    """Read one replica completely, check its data, and commit the result.

    `pieces` limits the size of single reads. `holds_lease` means that the calling thread already
    holds the container's lease. If `resumable_s` is not 0, the scan stores its position. It
    continues at a stored position if that scan began at most `resumable_s` seconds ago. `is_drill`
    marks the scan of a canary, which is not logged.

    Raise RefusedError(CONTAINER_NOT_FOUND) if there is no replica,
    RefusedError(UNCLOSED_CONTAINER_IO) if it is not closed yet, UnavailableError(BUSY) if the lease
    or memory is not available, and VolumeFailed if the disk fails.
    """
    hooks = _Hooks(stop, progress, pace, pieces)
    try:
        with tools.memory.hold(SCAN_BYTES, stop=stop):
            report = _scan_once(tools, container_id, hooks, buffers, holds_lease, resumable_s)
            for _ in range(SCAN_ATTEMPTS_MAX - 1):
                if report.tripped_reason == CHANGED:
                    report = _scan_once(
                        tools, container_id, hooks, buffers, holds_lease, resumable_s
                    )
    except VolumeFailed as error:
        tools.on_unreadable(tools.store.volume_id(container_id), str(error))
        raise
    if not is_drill:
        _log_scanned(report, tools.store.volume_id(container_id))
    damage = [finding for finding in report.findings if finding.is_damage]
    if damage and not report.tripped_reason.startswith((BREAKER, SHADOW)):
        tools.on_damage(tools.store.volume_id(container_id), damage)
    return report


def _log_scanned(report: ScanReport, volume_id: str) -> None:
    log.info(
        "replica_scanned",
        container_id=report.container_id,
        volume_id=volume_id,
        committed=report.committed,
        tripped_reason=report.tripped_reason,
        state_before=report.commit.state_before.value,
        state_after=report.commit.state_after.value,
        bytes_read=report.bytes_read,
        finding_count=report.finding_count,
    )


@dataclass(frozen=True, slots=True)
class _Hooks:
    stop: Callable[[], bool]
    progress: Callable[[int], None]
    pace: Callable[[int], None]
    pieces: ReadSplitting | None

    def spend(self, length_bytes: int) -> bool:
        """Report the bytes of a read to the callbacks. Return whether the scan may continue."""
        self.progress(length_bytes)
        self.pace(length_bytes)
        return not self.stop()


class _CursorKeeper:
    """Stores the position of a scan in the index.

    Each store is a durable write. Therefore, it happens only after each CURSOR_BYTES read, or after
    CURSOR_S seconds.
    """

    def __init__(self, tools: ScanDeps[ScannedStore], base: ScanBase, resumable_s: float) -> None:
        self._tools = tools
        self._base = base
        cursor = tools.store.kept_cursor(base.facts.container_id) if resumable_s else None
        now_ms = tools.clock.now_ms()
        if cursor is not None and not 0 <= now_ms - cursor.begun_at_ms <= resumable_s * 1000:
            cursor = None  # too old: damage may have occurred in the part that was read
        self.resume = None if cursor is None else cursor.mark
        self._begun_at_ms = now_ms if cursor is None else cursor.begun_at_ms
        self._kept_bytes = 0 if cursor is None else cursor.mark.bytes_read
        self._kept_at_s = tools.clock.monotonic_s()
        self._last: ScanMark | None = None

    def save_mark(self, mark: ScanMark) -> None:
        """Remember the position of the scan.

        Store it if CURSOR_BYTES were read or CURSOR_S seconds have passed since the last stored
        position.
        """
        self._last = mark
        is_much = mark.bytes_read - self._kept_bytes >= CURSOR_BYTES
        if is_much or self._tools.clock.monotonic_s() - self._kept_at_s >= CURSOR_S:
            self.keep_last()

    def keep_last(self) -> None:
        """Store the remembered position, if it is not stored yet."""
        if self._last is None:
            return
        cursor = ScanCursor(self._base.generation, self._begun_at_ms, self._last)
        self._tools.store.keep_cursor(self._base.facts.container_id, cursor)
        self._kept_bytes = self._last.bytes_read
        self._kept_at_s = self._tools.clock.monotonic_s()
        self._last = None


def _scan_once(
    tools: ScanDeps[ScannedStore],
    container_id: ContainerId,
    hooks: _Hooks,
    buffers: ReadBuffers | None,
    holds_lease: bool,
    resumable_s: float,
) -> ScanReport:
    def lease() -> AbstractContextManager[None]:
        if holds_lease:
            return nullcontext()
        return tools.leases.hold(container_id, tools.lease_wait_s, writes_chunks=False)

    with lease():
        base = tools.store.begin_scan(container_id)
    keeper = _CursorKeeper(tools, base, resumable_s)
    insists = base.doubts.are_over()
    try:
        reader = tools.open_reader(base, buffers=buffers, pieces=hooks.pieces, insists=insists)
    except BlockFailed as error:
        base.doubts.record_failure(str(error))
        raise
    shadow = tools.shadow
    shadowed = shadow.watch(reader) if shadow is not None and shadow.is_active() else None
    try:
        outcome = scan_replica(
            reader if shadowed is None else shadowed,
            algorithm=tools.store.algorithm,
            now_ms=tools.clock.now_ms,
            stop=hooks.stop,
            progress=hooks.progress,
            pace=hooks.pace,
            resume=keeper.resume,
            mark=keeper.save_mark if resumable_s else no_mark,
            insists=insists,
        )
        outcome = reader.settled(outcome, hooks.spend)
    finally:
        reader.close()
    if outcome.stopped_because == STOPPED:
        keeper.keep_last()
    _note_doubts(tools, base, outcome)
    difference = "" if shadowed is None else shadowed.difference(outcome)
    tripped_reason = f"{SHADOW}{difference}" if difference else _held_because(tools, base, outcome)
    tools.store.log_verdict(base, outcome, why=tripped_reason)
    if tripped_reason:
        return _paused_report(base.facts, outcome, tripped_reason)
    with lease():
        commit = tools.store.commit_scan(base, outcome)
    tripped_reason = outcome.stopped_because if commit.committed else CHANGED
    return ScanReport(
        container_id,
        replace(commit, committed=not tripped_reason),
        outcome.bytes_read,
        outcome.finding_count,
        outcome.findings,
        tripped_reason,
    )


def _note_doubts(tools: ScanDeps[ScannedStore], base: ScanBase, outcome: ScanOutcome) -> None:
    """Count a scan with failed reads in the index.

    A later scan may treat repeated failures as damage. If a chunk cannot be read, also call
    `on_unreadable` for its volume.
    """
    if is_lasting(outcome.stopped_because):
        base.doubts.record_failure(outcome.stopped_because)
    elif outcome.wavering_count and outcome.stopped_because != STOPPED:
        base.doubts.record_failure(f"{outcome.wavering_count} chunks of which no reads agree")
    for finding in outcome.findings:
        if finding.verdict is Verdict.UNREADABLE:
            tools.on_unreadable(base.facts.volume_id, finding.evidence)
            break


def _held_because(tools: ScanDeps[ScannedStore], base: ScanBase, outcome: ScanOutcome) -> str:
    """Return the reason if nothing of this scan may be committed.

    Return "" if the result, or the findings of a stopped scan, may be committed.
    """
    if outcome.stopped_because and not outcome.is_damaged:
        return outcome.stopped_because
    if tools.store.generation(base.facts.container_id) != base.generation:
        return CHANGED  # not passed to the breaker, because a change is no sign of a faulty host
    facts = base.facts
    doubt = tools.guard.record_scan(facts.volume_id, facts.container_id, outcome)
    if not doubt or not outcome.is_damaged:
        return ""
    log.error(
        "verdicts_withheld",
        container_id=facts.container_id,
        volume_id=facts.volume_id,
        finding_count=outcome.finding_count,
        first=outcome.findings[0].evidence,
        why=doubt,
    )
    return f"{BREAKER}{doubt}"


def _paused_report(facts: ReplicaFacts, outcome: ScanOutcome, why: str) -> ScanReport:
    unchanged = ScanCommit(
        committed=False, state_before=facts.state, state_after=facts.state, root_changed=False
    )
    return ScanReport(
        facts.container_id,
        unchanged,
        outcome.bytes_read,
        outcome.finding_count,
        outcome.findings,
        why,
    )
