"""Throttling of scans.

A scan calls its rate limiter after each read. The call returns when the next read is allowed.
`scanner.scan_rate_control` decides the rate. This module provides the clock, the waiting, and the
kernel's pressure counters. All threads that copy replicas to other datanodes share one rate
limiter.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Final

from scanner.scan_rate_control import (
    PAUSE_S,
    Latencies,
    PaceLimits,
    Pacer,
    PressureSample,
    parse_stall_us,
    pressure_of_others,
)
from suture.runtime.clock import Clock, SystemClock
from suture.runtime.loop import ProgressMarker

SLICE_S: Final = 1.0  # interval at which a long wait reports progress and checks for a pause
STALL_S: Final = 2.0  # update interval of the kernel's counters
STALE_S: Final = 5.0  # older counters are ignored
STALL_FILE: Final = Path("/proc/pressure/io")


def kernel_stall_us() -> int | None:
    """Return the microseconds for which tasks of this host have waited for I/O since boot.

    Return None if the kernel has no PSI (pressure stall information).
    """
    try:
        return parse_stall_us(STALL_FILE.read_text())
    except (OSError, ValueError):
        return None


class IoPressure:
    """I/O pressure from all work on this host except scans.

    All scanning threads share one object.
    """

    def __init__(
        self, clock: Clock, *, stall_us: Callable[[], int | None] = kernel_stall_us
    ) -> None:
        self._clock = clock
        self._stall_us = stall_us
        self._lock = Lock()
        self._own_s = 0.0
        self._last: PressureSample | None = None
        self._of_others = 0.0

    def worked(self, duration_s: float) -> None:
        """Record that a scan was reading for `duration_s` seconds."""
        with self._lock:
            self._own_s += duration_s

    def of_others(self) -> float:
        """Return the recent share of time in which other work waited for I/O.

        Return 0.0 if it is unknown.
        """
        with self._lock:
            now_s = self._clock.monotonic_s()
            if self._last is not None and now_s - self._last.at_s < STALL_S:
                return self._of_others
            total_us = self._stall_us()
            if total_us is None:
                return 0.0
            now = PressureSample(now_s, total_us, self._own_s)
            is_old = self._last is not None and now_s - self._last.at_s > STALE_S
            if self._last is None or is_old:
                self._of_others = 0.0  # there is no recent sample to compare with
            else:
                self._of_others = pressure_of_others(self._last, now)
            self._last = now
            return self._of_others


class ScanPace:
    """Rate limiter of the scan of one volume. The scan calls it after each read."""

    def __init__(
        self,
        limits: PaceLimits,
        wait: Callable[[float], bool],
        *,
        clock: Clock | None = None,
        latencies: Latencies | None = None,
        pressure: IoPressure | None = None,
        pulse: ProgressMarker | None = None,
    ) -> None:
        """Create a rate limiter with these limits.

        `wait(seconds)` waits, and returns True early if the process stops, as `Event.wait` does.
        """
        self._clock = clock or SystemClock()
        self._wait = wait
        self._pressure = pressure or IoPressure(self._clock, stall_us=lambda: None)
        self._pulse = pulse
        self._pacer = Pacer(limits, latencies or Latencies(), self._clock.monotonic_s())
        self._reading_since_s = 0.0
        self._piece_bytes = 0  # bytes of the current read that are already accounted for
        self._change_count = 0  # changes of the limits; a change ends a wait for the old limits
        self._is_interrupted: Callable[[], bool] = lambda: False

    @property
    def bytes_per_s(self) -> float:
        """Allowed rate in bytes per second."""
        return self._pacer.rate.bytes_per_s

    def change(self, limits: PaceLimits) -> None:
        """Replace the limits, and end a running wait. Any thread may call this."""
        self._pacer.change(limits)
        self._change_count += 1

    def begin_at(self, bytes_per_s: float) -> None:
        """Raise the rate to `bytes_per_s`, the rate of another scan of this volume.

        Never lower it.
        """
        self._pacer.rate.begin_at(bytes_per_s)

    def need(self, bytes_per_s: float) -> None:
        """Set the rate that the scan interval requires."""
        self._pacer.rate.need(bytes_per_s)

    def begin(self, is_interrupted: Callable[[], bool]) -> None:
        """Begin to limit the rate of a scan. A wait ends when `is_interrupted` returns True."""
        self._is_interrupted = is_interrupted
        self._piece_bytes = 0
        self._reading_since_s = self._clock.monotonic_s()

    def piece_bytes(self) -> int:
        """Return the maximum size of one read in bytes, or 0 if there is no limit.

        Implements `scanner.ports.ReadSplitting`.
        """
        return self._pacer.piece_bytes(self._clock.monotonic_s())

    def throttle_part(self, length_bytes: int) -> None:
        """Account for one part of a divided read, and wait until the next part is allowed."""
        self._account(length_bytes)
        self._piece_bytes += length_bytes

    def __call__(self, length_bytes: int) -> None:
        """Account for a read of `length_bytes`, and wait until the next read is allowed.

        Parts of the read that `throttle_part` has counted are not counted again.
        """
        last_bytes = max(0, length_bytes - self._piece_bytes)
        self._piece_bytes = 0
        self._account(last_bytes)

    def _account(self, length_bytes: int) -> None:
        now_s = self._clock.monotonic_s()
        took_s = now_s - self._reading_since_s if self._reading_since_s else 0.0
        self._pressure.worked(took_s)
        if self._pacer.is_time_to_adjust(now_s):
            self._pacer.adjust(now_s, self._pressure.of_others())
        change_count = self._change_count
        until_s = now_s + self._pacer.delay_s(now_s, length_bytes, took_s)
        while (left_s := until_s - self._clock.monotonic_s()) > 0 and not self._is_interrupted():
            if self._change_count != change_count or self._wait(min(left_s, SLICE_S)):
                break
            if self._pulse is not None:
                self._pulse.mark()
        self._reading_since_s = self._clock.monotonic_s()


class SharedPace:
    """Rate limiter that all threads share that send copies of replicas.

    While no client reads, copies are not delayed. While clients read, the rate starts at
    `floor_bytes_per_s` and adapts to the latency of the clients, as in a scan. Copies pause at the
    same times as the scans, so that the latency of clients without background work can be measured.
    """

    def __init__(
        self,
        floor_bytes_per_s: int,
        wait: Callable[[float], bool],
        *,
        clock: Clock | None = None,
        latencies: Latencies | None = None,
    ) -> None:
        """Create a rate limiter. `floor_bytes_per_s` is the minimum rate of all threads together.

        `wait(seconds)` waits, and returns True early if the process stops, as `Event.wait` does.
        """
        self._clock = clock or SystemClock()
        self._wait = wait
        self._latencies = latencies or Latencies()
        self._lock = Lock()
        self._accounted_at_s = now_s = self._clock.monotonic_s()
        limits = PaceLimits(floor_bytes_per_s=floor_bytes_per_s)
        self._pacer = Pacer(limits, self._latencies, now_s)

    @property
    def bytes_per_s(self) -> float:
        """Allowed rate in bytes per second while clients read."""
        return self._pacer.rate.bytes_per_s

    def __call__(self, length_bytes: int, is_interrupted: Callable[[], bool]) -> None:
        """Account for `length_bytes`, and wait until the next bytes are allowed.

        The wait ends early if `is_interrupted` returns True or the process stops.
        """
        until_s = self._due_s(length_bytes)
        while (left_s := until_s - self._clock.monotonic_s()) > 0 and not is_interrupted():
            if self._wait(min(left_s, SLICE_S)):
                return

    def _due_s(self, length_bytes: int) -> float:
        with self._lock:
            now_s = self._clock.monotonic_s()
            took_s, self._accounted_at_s = now_s - self._accounted_at_s, now_s
            if not self._latencies.are_recent(now_s):
                self._latencies.scanned(now_s)  # the next client reads count as during a scan
                return now_s
            if self._pacer.is_time_to_adjust(now_s):
                self._pacer.adjust(now_s, others_pressure=0.0)
            if took_s >= PAUSE_S:  # idle or paused: no measurement of the disk
                took_s = 0.0
            return now_s + self._pacer.delay_s(now_s, length_bytes, took_s)
