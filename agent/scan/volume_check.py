"""Checks of every volume, periodically and after a failed read. A failed volume is no longer used.

Each check runs a probe in its own thread, because a probe may hang with the disk. An error, or no
result within the timeout, counts as a failed check. No second probe begins while one hangs. If a
probe failed because the host was short of a resource, it is repeated and not counted.

After too many failed checks in the window, the volume is taken out of use until the next start
(fenced). This happens at once if the volume is missing, or if a probe hangs for twice the timeout.
"""

import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

import structlog

from agent.store.replica_store import ReplicaStore
from agent.store.volumes.probe import Probe
from merkle.replica import ContainerId
from scanner.failure_window import FailureWindow
from suture.errors import SutureError, UnavailableError
from suture.runtime.clock import Clock
from suture.runtime.durable import is_shortage
from suture.runtime.loop import RetryAfter, Step

LOOK_S: Final = 0.2  # interval at which running probes are polled

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckLimits:
    """Limits of volume checks, in seconds.

    `gap_min_s` is the minimum time between two checks, even on request. After a failed check, the
    minimum is `retry_s`, so that a disk can recover from a reset. A volume is taken out of use
    after more than `strikes_tolerated` failed checks in `strikes_window_s`.
    """

    interval_s: float = 3600.0
    gap_min_s: float = 10.0
    retry_s: float = 60.0
    timeout_s: float = 600.0
    strikes_tolerated: int = 1
    strikes_window_s: float = 70 * 60.0


@dataclass(slots=True)
class _RunningProbe:
    """A running probe. Its thread appends the result to `answer`."""

    begun_at_s: float
    answer: list[Probe] = field(default_factory=list)
    has_timed_out: bool = False


@dataclass(slots=True)
class _Volume:
    strikes: FailureWindow
    due_at_s: float
    checked_at_s: float = float("-inf")
    running: _RunningProbe | None = None
    error: str = ""
    is_asked: bool = False  # whether a check was requested since the last one began


@dataclass(eq=False)
class VolumeCheckWorker:
    """Worker that checks volumes. Any thread may call `request` and `error_of`.

    `on_failed` gets the id of a volume that was taken out of use, and the ids of its containers.
    """

    name = "volume-check"

    store: ReplicaStore
    _: KW_ONLY
    clock: Clock
    on_failed: Callable[[str, tuple[ContainerId, ...]], None]
    limits: CheckLimits = CheckLimits()
    probe: Callable[[str], Probe] | None = None

    def __post_init__(self) -> None:
        self._volumes = {
            facts.volume_id: self._new() for facts in self.store.volumes() if not facts.failed
        }
        self._fenced: dict[str, str] = {}
        self.wake: Callable[[], None] = lambda: None  # wakes the worker's loop; set by its creator
        self.check_count = 0

    def request(self, volume_id: str, reason: str) -> None:
        """Check this volume soon, because an operation on it failed."""
        volume = self._volumes.get(volume_id)
        if volume is None:
            return
        log.warning("volume_check_requested", volume_id=volume_id, reason=reason)
        volume.is_asked = True
        gap_s = self.limits.retry_s if volume.error else self.limits.gap_min_s
        volume.due_at_s = min(volume.due_at_s, volume.checked_at_s + gap_s)
        self.wake()

    def add(self, volume_id: str) -> None:
        """Add a volume to the periodic checks."""
        self._fenced.pop(volume_id, None)
        self._volumes.setdefault(volume_id, self._new())
        self.wake()

    def error_of(self, volume_id: str) -> str:
        """Return the error of the last check of a volume.

        Return "" if the check passed, or if none was made.
        """
        volume = self._volumes.get(volume_id)
        return self._fenced.get(volume_id, "") if volume is None else volume.error

    def step(self) -> Step:
        """Begin the due checks, and evaluate the probes that have ended."""
        for volume_id, volume in list(self._volumes.items()):
            if volume.running is not None:
                self._look(volume_id, volume, volume.running)
            elif volume.due_at_s <= self.clock.monotonic_s():
                self._begin(volume_id, volume)
        if any(volume.running for volume in self._volumes.values()):
            return RetryAfter(LOOK_S)
        due_at_s = min((volume.due_at_s for volume in self._volumes.values()), default=None)
        if due_at_s is None:
            return RetryAfter(self.limits.interval_s)
        return RetryAfter(max(LOOK_S, due_at_s - self.clock.monotonic_s()))

    def _new(self) -> _Volume:
        limits = self.limits
        strikes = FailureWindow(limits.strikes_tolerated, limits.strikes_window_s)
        return _Volume(strikes, self.clock.monotonic_s())

    def _begin(self, volume_id: str, volume: _Volume) -> None:
        running = _RunningProbe(self.clock.monotonic_s())
        volume.running, volume.is_asked = running, False

        def work() -> None:
            try:
                probe = self.probe or self.store.volume_set.probe
                running.answer.append(probe(volume_id))
            except (SutureError, OSError, MemoryError) as error:
                why = f"the probe failed: {error!r}"
                is_busy = is_shortage(error) or isinstance(error, UnavailableError)
                running.answer.append(Probe(shortage=why) if is_busy else Probe(why))

        thread = threading.Thread(target=work, name=f"probe-{volume_id}", daemon=True)
        try:
            thread.start()  # may hang with the disk; no thread joins it
        except RuntimeError as error:  # no thread was available; the disk is not at fault
            running.answer.append(Probe(shortage=str(error)))

    def _look(self, volume_id: str, volume: _Volume, running: _RunningProbe) -> None:
        now_s = self.clock.monotonic_s()
        if running.answer:
            volume.running = None
            volume.checked_at_s = now_s
            limits = self.limits
            volume.due_at_s = now_s + (limits.gap_min_s if volume.is_asked else limits.interval_s)
            self.check_count += 1
            self._judge(volume_id, volume, running.answer[0])
        elif not running.has_timed_out and now_s - running.begun_at_s > self.limits.timeout_s:
            running.has_timed_out = True
            self._judge(volume_id, volume, Probe(f"no answer for {self.limits.timeout_s:g} s"))
        elif running.has_timed_out and now_s - running.begun_at_s > 2 * self.limits.timeout_s:
            self._judge(volume_id, volume, Probe("it hangs", is_final=True))

    def _judge(self, volume_id: str, volume: _Volume, probe: Probe) -> None:
        now_s = self.clock.monotonic_s()
        if probe.shortage:
            log.warning("volume_check_postponed", volume_id=volume_id, reason=probe.shortage)
            volume.due_at_s = now_s + self.limits.gap_min_s
            return
        volume.error = probe.error
        if not probe.error:
            return
        log.error("volume_check_failed", volume_id=volume_id, error=probe.error)
        volume.due_at_s = now_s + self.limits.retry_s
        if volume.strikes.add(now_s) or probe.is_final:
            self.fence(volume_id, probe.error)

    def fence(self, volume_id: str, error: str) -> None:
        """Fence a volume that does not work. Do nothing if it is fenced already."""
        if self._volumes.pop(volume_id, None) is None:
            return
        self._fenced[volume_id] = error
        lost = self.store.volume_set.fail_volume(volume_id, error)
        log.error("volume_fenced", volume_id=volume_id, error=error, lost_count=len(lost))
        self.on_failed(volume_id, lost)
