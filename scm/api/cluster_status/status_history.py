"""The history of the cluster: a sample every 30 seconds, and all changes of the verdict.

Each sample is merged into its 5-minute interval, its hour and its day. A start of the control plane
is recorded as a change of the verdict to UNKNOWN, because nothing was observed before the start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from health.cluster_verdict import DataVerdict, Judgement
from scm.api.cluster_status.cluster_look import Look
from scm.api.replication_report import LastVerification
from scm.state.database import StateChange, StateDatabase
from scm.state.history.interval_samples import (
    LEVELS,
    StatusSample,
    VerdictChange,
    Verification,
    merged,
    placed,
)

EVERY_S: Final = 30.0
TURNS_MAX: Final = 200
VERIFICATIONS_MAX: Final = 50
TEXT_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class StatusHistoryData:
    """The recorded history, oldest entries first."""

    samples: tuple[Sequence[StatusSample], ...] = ()  # by level
    turns: Sequence[VerdictChange] = ()
    verifications: Sequence[Verification] = ()

    def since_ms(self, verdict: DataVerdict, now_ms: int) -> int:
        """Return the time of the last change of the verdict, in ms since 1970.

        Return `now_ms` if the last change was not to `verdict`.
        """
        last = self.turns[-1] if self.turns else None
        return last.at_ms if last is not None and last.verdict is verdict else now_ms


class StatusHistory:
    """Records samples of the cluster, changes of the verdict, and results of Spark verifications.

    Callers must hold the control plane's lock.
    """

    def __init__(self, state: StateDatabase, *, started_at_ms: int) -> None:
        self._state = state
        self._started_at_ms = started_at_ms
        self._is_first = True
        self._noted_at_s: float | None = None
        self._done = (0, 0, 0)

    def is_due(self, now_s: float) -> bool:
        """Return True if EVERY_S seconds have passed since the last sample."""
        return self._noted_at_s is None or now_s - self._noted_at_s >= EVERY_S

    def record_sample(
        self,
        change: StateChange,
        look: Look,
        judgement: Judgement,
        *,
        done: tuple[int, int, int],
        now_s: float,
    ) -> None:
        """Record a sample of the cluster, and the verdict if it has changed.

        `done` has three totals since the start: executed commands, failed commands, and moved
        bytes.
        """
        self._noted_at_s = now_s
        if self._is_first:
            self._is_first = False
            change.on_undo(lambda: setattr(self, "_is_first", True))
            self._start_interval(change, self._started_at_ms, DataVerdict.UNKNOWN, self._begin())
        turns = self._state.turns.by_time()
        if not turns or turns[-1].verdict is not judgement.verdict:
            self._start_interval(change, look.now_ms, judgement.verdict, judgement.text)
        before, self._done = self._done, done
        change.on_undo(lambda: setattr(self, "_done", before))
        ended, failed, moved_bytes = (now - then for now, then in zip(done, before, strict=True))
        sample = sample_of(
            look, judgement.verdict, done=ended, failed=failed, moved_bytes=moved_bytes
        )
        self._sample(change, sample)

    def verified(self, change: StateChange, verified: LastVerification) -> None:
        """Record the result of a Spark verification."""
        row = Verification(
            verified.at_ms,
            tuple(sorted(verified.decisions.items())),
            verified.error[:TEXT_CHARS_MAX],
        )
        change.put(self._state.verifications, row)
        for old in self._state.verifications.by_time()[:-VERIFICATIONS_MAX]:
            change.remove(self._state.verifications, old.at_ms)

    def last_verified(self) -> LastVerification:
        """Return the result of the last Spark verification, even if it ran before this start."""
        known = self._state.verifications.by_time()
        if not known:
            return LastVerification()
        return LastVerification(known[-1].at_ms, dict(known[-1].decisions), known[-1].error)

    def past(self) -> StatusHistoryData:
        """Return all recorded samples, changes of the verdict, and Spark verifications."""
        return StatusHistoryData(
            tuple(self._state.samples.of(level) for level in range(len(LEVELS))),
            self._state.turns.by_time(),
            self._state.verifications.by_time(),
        )

    def _begin(self) -> str:
        known = self._state.samples.of(0)
        if not known:
            return "The control plane started for the first time"
        at = datetime.fromtimestamp(known[-1].at_ms / 1000, UTC)
        return f"The control plane started; nobody watched since {at:%Y-%m-%d %H:%M} UTC"

    def _start_interval(
        self, change: StateChange, at_ms: int, verdict: DataVerdict, text: str
    ) -> None:
        turns = self._state.turns.by_time()
        at_ms = max(at_ms, turns[-1].at_ms + 1 if turns else 0)  # even if the clock went back
        change.put(self._state.turns, VerdictChange(at_ms, verdict, text[:TEXT_CHARS_MAX]))
        for old in turns[: len(turns) + 1 - TURNS_MAX]:
            change.remove(self._state.turns, old.at_ms)

    def _sample(self, change: StateChange, taken: StatusSample) -> None:
        for level, kept in enumerate(LEVELS):
            sample = placed(taken, level)
            before = self._state.samples.get(sample.key)
            change.put(self._state.samples, sample if before is None else merged(before, sample))
            if before is None:
                for old in self._state.samples.of(level)[: -kept.count_max]:
                    change.remove(self._state.samples, old.key)


def sample_of(
    look: Look, verdict: DataVerdict, *, done: int, failed: int, moved_bytes: int
) -> StatusSample:
    """Return a sample for the history, with the facts in `look` and the given numbers."""
    sums, counts = look.sums, look.counts
    return StatusSample(
        level=0,
        at_ms=look.now_ms,
        verdict=verdict,
        node_count=sums.node_count,
        silent_count=len(sums.silent),
        failed_volume_count=sums.failed_volume_count,
        container_count=counts.all,
        faulty_count=counts.faulty,
        lost_count=counts.lost,
        capacity_bytes=sums.capacity_bytes,
        used_bytes=sums.used_bytes,
        data_bytes=sums.data_bytes,
        in_time_bytes=sums.in_time_bytes,
        oldest_scan_at_ms=sums.oldest_scan_at_ms,
        done_count=done,
        failed_count=failed,
        moved_bytes=moved_bytes,
    )
