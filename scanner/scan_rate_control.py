"""Controls the rate of a scan, so that it uses an idle disk but hardly slows the reads of clients.

The result is a delay after each read of the scan. The inputs are:

    rate that the schedule requires                        the minimum rate
    p99 of clients' reads during the scan and its pauses   increase or decrease
    I/O pressure of other tasks (PSI)                      increase or decrease
    speed of the scan's own reads                          the maximum rate

The rate increases slowly and decreases fast, as in AIMD (Chiu and Jain 1989), but in proportion to
the rate, because disks differ by a factor of a hundred. The rate doubles until clients are first
disturbed. Later, it grows more slowly near the rate that was too high last time, as in CUBIC (RFC
9438). While clients read, the scan pauses for a second every few seconds, and the latencies of
clients' reads during the scan and during the pauses are compared.

If the rate were far above the disk's speed, it would have no effect, and a decrease would take
minutes. Therefore, if no maximum rate is configured, the maximum follows the speed of the scan's
reads (as a TCP sender's window follows its use, RFC 7661).

No I/O: the caller passes the time and the measurements. Only `Latencies` is thread-safe.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Final

MIB: Final = 1024**2
BURST_S: Final = 0.1  # seconds of reads that an idle scan may save up
ADJUST_S: Final = 1.0  # minimum time between two adjustments
CYCLE_S: Final = 5.0  # length of a cycle of scan and pause while clients read
PAUSE_S: Final = 1.0  # length of the pause, to measure clients' latency without a scan
SETTLE_S: Final = 2.0  # after a decrease; measurements in this time are ignored
CALM_S: Final = 10.0  # without reads of clients or pressure: the disk then counts as idle
KEPT_S: Final = 30.0  # validity of a latency measured during the scan
KEPT_WITHOUT_S: Final = 180.0  # validity of a latency measured in a pause; there are fewer
ACTIVE_S: Final = 2.0  # without a read: a scan then counts as inactive
PIECE_BYTES: Final = 512 * 1024  # of one read while clients read. A hard disk reads this much in
# the time of one seek, so that a client's read waits only briefly.
SAMPLES_MIN: Final = 50  # minimum number of reads for a 99th percentile
SAMPLES_MAX: Final = 4_000
UNBOUNDED: Final = 2.0**40  # rate in bytes per second before the first measurement
RATIO_MAX: Final = 1.1  # p99 during the scan / p99 in its pauses; below the documented 1.2
DEVIATIONS: Final = 2.0  # standard deviations that the number of slow reads must exceed
NOISE_S: Final = 0.0005  # a smaller difference is noise
PRESSURE_MAX: Final = 0.2  # maximum share of time in which other tasks wait for a disk
DECREASE: Final = 0.5
INCREASE: Final = 1.05  # per adjustment; about 15 of them make up for one decrease
CAREFUL: Final = 0.8  # above this share of the rate that was too high, the increase is slow
CAREFUL_INCREASE: Final = 1.003  # per adjustment near that rate, which is reached after minutes
REACH: Final = 1.5  # automatic ceiling / speed of the scan's reads


class Latencies:
    """Latencies of clients' reads, during the scan and during its pauses.

    `add` is thread-safe, because appending to a deque is atomic.
    """

    def __init__(self) -> None:
        self._beside: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)
        self._without: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)
        self._read_at_s = float("-inf")
        self._scanned_at_s = float("-inf")

    def add(self, now_s: float, latency_s: float) -> None:
        """Record the latency of a client's read that ended at `now_s`."""
        self._read_at_s = now_s
        begun_s = now_s - latency_s
        if begun_s > self._scanned_at_s + ACTIVE_S or (is_pause(now_s) and is_pause(begun_s)):
            self._without.append((now_s, latency_s))
        elif not is_pause(now_s):
            self._beside.append((now_s, latency_s))

    def scanned(self, now_s: float) -> None:
        """Record that the scan read data at `now_s`."""
        self._scanned_at_s = now_s

    def are_recent(self, now_s: float) -> bool:
        """Return True if a client has read in the last CYCLE_S seconds."""
        return self._read_at_s > now_s - CYCLE_S

    def compared(self, now_s: float, since_s: float) -> "LatencyComparison | None":
        """Compare the latencies of clients' reads during the scan with those during its pauses.

        Only reads after `since_s` are used for the scan. Return None if there are too few reads.
        """
        beside = _since(self._beside, max(since_s, now_s - KEPT_S))
        without = _since(self._without, now_s - KEPT_WITHOUT_S)
        if min(len(beside), len(without)) < SAMPLES_MIN:
            return None
        limit_s = too_slow_s(p99_of(without))
        return LatencyComparison(len(beside), sum(latency_s > limit_s for latency_s in beside))


def _since(samples: Iterable[tuple[float, float]], since_s: float) -> list[float]:
    return [latency_s for at_s, latency_s in tuple(samples) if at_s >= since_s]


@dataclass(frozen=True, slots=True)
class LatencyComparison:
    """Number of clients' reads during a scan, and the number of them that took longer than
    `too_slow_s`."""

    count: int
    slow_count: int

    @property
    def is_disturbed(self) -> bool:
        """True if the scan slows clients more than allowed: significantly more than one in a
        hundred of their reads is too slow."""
        expected = self.count / 100
        return self.slow_count > expected + DEVIATIONS * sqrt(expected)


def too_slow_s(p99_without_s: float) -> float:
    """Return the latency in seconds above which a client's read is too slow, given the 99th
    percentile without a scan."""
    return max(p99_without_s * RATIO_MAX, p99_without_s + NOISE_S)


def p99_of(values: list[float]) -> float:
    """Return the 99th percentile of the values (nearest rank)."""
    return sorted(values)[-(len(values) // 100) - 1]


def is_pause(now_s: float) -> bool:
    """Return True if the scans pause at `now_s`.

    The scans of all volumes pause at the same time, because the volumes may share a bus, a
    controller or the processor.
    """
    return now_s % CYCLE_S < PAUSE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceLimits:
    """The limits of one volume's scan rate.

    If `ceiling_bytes_per_s` is 0, the maximum rate follows the speed of the scan's reads. If
    `fixed_bytes_per_s` is not 0, the rate is fixed to this value.
    """

    floor_bytes_per_s: int = MIB
    ceiling_bytes_per_s: int = 0
    fixed_bytes_per_s: int = 0


class RateControl:
    """Controls the rate of one volume's scan."""

    def __init__(self, limits: PaceLimits, latencies: Latencies) -> None:
        self._limits = limits
        self._latencies = latencies
        self._rate = float(limits.floor_bytes_per_s)
        self._needed = 0.0
        self._is_probing = True  # no sign of trouble yet
        self._too_much = float("inf")  # the rate at the last sign of trouble
        self._reached = 0.0  # speed of the reads, without waits; 0.0 = unknown
        self._decreased_at_s = 0.0

    @property
    def bytes_per_s(self) -> float:
        """The current rate in bytes per second."""
        return float(self._limits.fixed_bytes_per_s) or self._rate

    def change(self, limits: PaceLimits) -> None:
        """Replace the limits, and adjust the rate to them. Thread-safe."""
        self._limits = limits
        self._rate = min(max(self._rate, self.lowest_bytes_per_s), self._highest)

    @property
    def lowest_bytes_per_s(self) -> float:
        """The minimum rate, which applies even if clients are slow.

        It is the larger of the rate that the scan interval requires and the configured minimum, but
        at most the maximum rate.
        """
        return min(max(self._needed, self._limits.floor_bytes_per_s), self._highest)

    @property
    def _highest(self) -> float:
        if self._limits.ceiling_bytes_per_s:
            return float(self._limits.ceiling_bytes_per_s)
        if not self._reached:
            return UNBOUNDED
        return max(REACH * self._reached, self._needed, self._limits.floor_bytes_per_s)

    def reached(self, bytes_per_s: float) -> None:
        """Record the speed of the scan's reads in bytes per second, without the waits between
        them."""
        self._reached = bytes_per_s

    def begin_at(self, bytes_per_s: float) -> None:
        """Raise the rate to `bytes_per_s`, but not above the maximum. The method never lowers the
        rate."""
        self._rate = min(max(self._rate, bytes_per_s), self._highest)

    def need(self, bytes_per_s: float) -> None:
        """Set the rate in bytes per second that the scan interval requires."""
        self._needed = bytes_per_s
        if not self._limits.fixed_bytes_per_s:
            self._rate = max(self._rate, self.lowest_bytes_per_s)

    def adjust(self, now_s: float, others_pressure: float) -> None:
        """Increase or decrease the rate once.

        `others_pressure` is the share of time in which tasks other than the scan waited for a disk.
        """
        if self._limits.fixed_bytes_per_s:
            return
        since_s = self._decreased_at_s + SETTLE_S
        compared = self._latencies.compared(now_s, since_s)
        if compared is not None:  # takes precedence: clients' reads are pressure, too
            is_disturbed = compared.is_disturbed
        else:
            is_disturbed = others_pressure > PRESSURE_MAX
        if is_disturbed:
            self._is_probing = False
            if now_s >= since_s:
                self._decreased_at_s = now_s
                self._too_much = self._rate
                self._rate *= DECREASE
        elif not self._latencies.are_recent(now_s):
            if now_s >= self._decreased_at_s + CALM_S:  # clients stopped reading
                self._is_probing, self._too_much = True, float("inf")  # forget the disturbing rate
            self._rate *= self._growth
        elif compared is not None:
            self._rate *= self._growth
        # otherwise clients read, and the effect of the present rate is still unknown
        self._rate = min(max(self._rate, self.lowest_bytes_per_s), self._highest)

    @property
    def _growth(self) -> float:
        if self._is_probing:
            return 2.0
        return INCREASE if self._rate < CAREFUL * self._too_much else CAREFUL_INCREASE


class Budget:
    """A token bucket that limits the rate of reads. After an idle time, a scan may read for
    `BURST_S` seconds without waiting."""

    def __init__(self, now_s: float) -> None:
        self._due_s = now_s

    def delay_s(self, now_s: float, length_bytes: int, bytes_per_s: float) -> float:
        """Count the bytes of one read, and return the seconds to wait until the next read. A rate
        of 0 is unlimited."""
        if bytes_per_s:
            self._due_s = max(self._due_s, now_s - BURST_S) + length_bytes / bytes_per_s
        return max(0.0, self._due_s - now_s)


class Pacer:
    """Computes how long a scan must wait after each read."""

    def __init__(self, limits: PaceLimits, latencies: Latencies, now_s: float) -> None:
        self._limits = limits
        self._latencies = latencies
        self._budget = Budget(now_s)
        self._is_changed = False  # whether the limits changed since the last read
        self._adjusted_at_s = now_s
        self._read_bytes = 0
        self._reading_s = 0.0
        self.rate = RateControl(limits, latencies)

    def change(self, limits: PaceLimits) -> None:
        """Replace the limits, and reset the budget of reads. Thread-safe.

        Without the reset, a wait that was computed with a low earlier rate could last hours.
        """
        self._limits = limits
        self.rate.change(limits)
        self._is_changed = True

    def piece_bytes(self, now_s: float) -> int:
        """Return the maximum number of bytes of one read; 0 = unlimited.

        The size is limited while clients read, because a large read of the scan delays the reads of
        clients.
        """
        if self._limits.fixed_bytes_per_s or not self._latencies.are_recent(now_s):
            return 0
        return PIECE_BYTES

    def is_time_to_adjust(self, now_s: float) -> bool:
        """Return True if at least ADJUST_S seconds have passed since the last call of `adjust`."""
        return now_s - self._adjusted_at_s >= ADJUST_S

    def adjust(self, now_s: float, others_pressure: float) -> None:
        """Adjust the rate to the measurements since the last call. `others_pressure` is the share
        of time in which tasks other than the scan waited for a disk."""
        self._adjusted_at_s = now_s
        if self._reading_s > 0:
            self.rate.reached(self._read_bytes / self._reading_s)
            self._read_bytes, self._reading_s = 0, 0.0
        self.rate.adjust(now_s, others_pressure)

    def delay_s(self, now_s: float, length_bytes: int, took_s: float = 0.0) -> float:
        """Record a finished read that took `took_s` seconds. Return the seconds to wait until the
        next read."""
        self._latencies.scanned(now_s)
        if self._is_changed:
            self._is_changed = False
            self._budget = Budget(now_s)
        self._read_bytes += length_bytes
        self._reading_s += took_s
        delay_s = self._budget.delay_s(now_s, length_bytes, self.rate.bytes_per_s)
        if self._limits.fixed_bytes_per_s:
            return delay_s
        return delay_s + self._rest_of_pause_s(now_s + delay_s)

    def _rest_of_pause_s(self, at_s: float) -> float:
        if not self._latencies.are_recent(at_s) or not is_pause(at_s):
            return 0.0
        return PAUSE_S - at_s % CYCLE_S


@dataclass(frozen=True, slots=True)
class PressureSample:
    """A sample of the kernel's I/O pressure (PSI, line `some`).

    `total_us` is the total time in microseconds in which at least one task waited for I/O.
    """

    at_s: float
    total_us: int
    own_s: float  # seconds that our own scans have spent reading


def pressure_of_others(first: PressureSample, second: PressureSample) -> float:
    """Return a lower bound of the share of time in which tasks other than the scans waited for a
    disk.

    The kernel also counts the time in which the scans waited for their own reads. This time is
    subtracted.
    """
    duration_s = second.at_s - first.at_s
    if duration_s <= 0:
        return 0.0
    waited_s = (second.total_us - first.total_us) / 1e6 - (second.own_s - first.own_s)
    return min(1.0, max(0.0, waited_s / duration_s))


def parse_stall_us(text: str) -> int:
    """Return the number `total` in the line `some` of /proc/pressure/io, in microseconds. Raise
    ValueError if there is no such line."""
    for line in text.splitlines():
        kind, *fields = line.split()
        if kind == "some":
            values = dict(field.split("=", 1) for field in fields)
            return int(values["total"])
    raise ValueError("there is no line of `some`")
