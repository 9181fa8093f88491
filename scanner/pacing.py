"""How fast a scan reads: as fast as the disk is idle, as slow as the promise allows.

    needed by the schedule ─► lowest rate ┐
    readChunk p99 beside the scan         ├─ AIMD ─► bytes/s ─► delay after a read
    readChunk p99 in its pauses           │
    pressure that is not the scan's own ──┤
    what its own reads reach ─► ceiling ──┘

Slow increase, fast decrease, as in AIMD (Chiu and Jain 1989) but in proportion, because disks
differ by a factor of a hundred; with doubling until the first sign of trouble, and slower still
near the rate that was too much last time, as in CUBIC (RFC 9438). What the clients would have
without the scan is not known from config: while they read, the scan pauses for a moment of every
few seconds, and the two latencies are compared.

A rate far above what the disk gives means nothing, and coming down from it would take minutes. So
where no ceiling is set it follows what the scan's own reads reach (as a TCP sender's window does
what it uses, RFC 7661).

Pure: time and measurements come in. One owner at a time, except `Latencies`.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import Final

MIB: Final = 1024**2
BURST_S: Final = 0.1  # of budget that an idle scan may save up: a client waits for it
ADJUST_S: Final = 1.0  # between two decisions
CYCLE_S: Final = 5.0  # while clients read, every so often ...
PAUSE_S: Final = 1.0  # ... the scan pauses so long, to see how they do without it
SETTLE_S: Final = 2.0  # after a decrease: what was measured before says nothing any more
CALM_S: Final = 10.0  # so long without client or pressure, and the disk counts as idle again
KEPT_S: Final = 30.0  # a latency beside the scan counts so long
KEPT_WITHOUT_S: Final = 180.0  # one without: there are fewer, and no rate of ours changed them
ACTIVE_S: Final = 2.0  # a scan that has read nothing for so long disturbs nobody
PIECE_BYTES: Final = 512 * 1024  # of one read while clients read: a disk of the old kind needs as
# long to seek as for so much, and a client that comes meanwhile waits for no more than that
SAMPLES_MIN: Final = 50  # of fewer reads the 99th percentile is an accident
SAMPLES_MAX: Final = 4_000
UNBOUNDED: Final = 2.0**40  # bytes a second, before anything was measured
RATIO_MAX: Final = 1.1  # of the p99 beside the scan to the one without: below the promised 1.2
DEVIATIONS: Final = 2.0  # standard ones, of the number of slow reads: fewer are chance
NOISE_S: Final = 0.0005  # a difference so small is the machine's mood
PRESSURE_MAX: Final = 0.2  # share of time in which others waited for a disk
DECREASE: Final = 0.5
INCREASE: Final = 1.05  # per decision: half a minute makes up for one decrease
CAREFUL: Final = 0.8  # of the rate that was too much ...
CAREFUL_INCREASE: Final = 1.003  # ... per decision: some minutes until that is tried again
REACH: Final = 1.5  # an automatic ceiling lies so far above what the reads reach


class Latencies:
    """How long clients' reads took, beside the scan and without it.

    `add` may be called by any thread: appending to a deque is atomic.
    """

    def __init__(self) -> None:
        self._beside: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)
        self._without: deque[tuple[float, float]] = deque(maxlen=SAMPLES_MAX)
        self._read_at_s = float("-inf")
        self._scanned_at_s = float("-inf")

    def add(self, now_s: float, latency_s: float) -> None:
        """Count a read that ended at `now_s`."""
        self._read_at_s = now_s
        begun_s = now_s - latency_s
        if begun_s > self._scanned_at_s + ACTIVE_S or (is_pause(now_s) and is_pause(begun_s)):
            self._without.append((now_s, latency_s))
        elif not is_pause(now_s):
            self._beside.append((now_s, latency_s))

    def scanned(self, now_s: float) -> None:
        """Note that a scan has read something."""
        self._scanned_at_s = now_s

    def are_recent(self, now_s: float) -> bool:
        """Whether clients read at all."""
        return self._read_at_s > now_s - CYCLE_S

    def compared(self, now_s: float, since_s: float) -> "Compared | None":
        """Return both p99s, of reads beside the scan since `since_s`; None when they are few."""
        beside = _since(self._beside, max(since_s, now_s - KEPT_S))
        without = _since(self._without, now_s - KEPT_WITHOUT_S)
        if min(len(beside), len(without)) < SAMPLES_MIN:
            return None
        limit_s = too_slow_s(p99_of(without))
        return Compared(len(beside), sum(latency_s > limit_s for latency_s in beside))


def _since(samples: Iterable[tuple[float, float]], since_s: float) -> list[float]:
    return [latency_s for at_s, latency_s in tuple(samples) if at_s >= since_s]


@dataclass(frozen=True, slots=True)
class Compared:
    """Clients' reads beside a scan: how many, and how many took too long by `too_slow_s`."""

    count: int
    slow_count: int

    @property
    def is_disturbed(self) -> bool:
        """Whether the scan costs the clients more than it may: more than a hundredth of their
        reads is too slow, and so many more that it is no accident."""
        expected = self.count / 100
        return self.slow_count > expected + DEVIATIONS * sqrt(expected)


def too_slow_s(p99_without_s: float) -> float:
    """Return what a hundredth of the reads beside a scan may exceed."""
    return max(p99_without_s * RATIO_MAX, p99_without_s + NOISE_S)


def p99_of(values: list[float]) -> float:
    """Return the nearest-rank 99th percentile."""
    return sorted(values)[-(len(values) // 100) - 1]


def is_pause(now_s: float) -> bool:
    """Whether all scans of this process pause now, if clients read: one rhythm for all volumes,
    because they may share a bus, a controller or the processor."""
    return now_s % CYCLE_S < PAUSE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceLimits:
    """Bounds of one volume's scan. 0: none; of the ceiling: what its reads reach. With
    `fixed_bytes_per_s` nothing is adjusted."""

    floor_bytes_per_s: int = MIB
    ceiling_bytes_per_s: int = 0
    fixed_bytes_per_s: int = 0


class RateControl:
    """Finds the rate of one volume's scan."""

    def __init__(self, limits: PaceLimits, latencies: Latencies) -> None:
        self._limits = limits
        self._latencies = latencies
        self._rate = float(limits.floor_bytes_per_s)
        self._needed = 0.0
        self._is_probing = True  # no sign of trouble yet
        self._too_much = float("inf")  # the rate at the last sign of trouble
        self._reached = 0.0  # by reads, waits left out; 0.0 is not known
        self._decreased_at_s = 0.0

    @property
    def bytes_per_s(self) -> float:
        """The rate now."""
        return float(self._limits.fixed_bytes_per_s) or self._rate

    def change(self, limits: PaceLimits) -> None:
        """Keep to other limits from now on; another thread may do so."""
        self._limits = limits
        self._rate = min(max(self._rate, self.lowest_bytes_per_s), self._highest)

    @property
    def lowest_bytes_per_s(self) -> float:
        """The rate that no latency can push the scan below: the promise and the floor."""
        return min(max(self._needed, self._limits.floor_bytes_per_s), self._highest)

    @property
    def _highest(self) -> float:
        if self._limits.ceiling_bytes_per_s:
            return float(self._limits.ceiling_bytes_per_s)
        if not self._reached:
            return UNBOUNDED
        return max(REACH * self._reached, self._needed, self._limits.floor_bytes_per_s)

    def reached(self, bytes_per_s: float) -> None:
        """Note the speed of the scan's own reads, without its waits."""
        self._reached = bytes_per_s

    def begin_at(self, bytes_per_s: float) -> None:
        """Begin at a rate that was found good, if it is higher than the lowest."""
        self._rate = min(max(self._rate, bytes_per_s), self._highest)

    def need(self, bytes_per_s: float) -> None:
        """Note what the promise needs from now on."""
        self._needed = bytes_per_s
        if not self._limits.fixed_bytes_per_s:
            self._rate = max(self._rate, self.lowest_bytes_per_s)

    def adjust(self, now_s: float, others_pressure: float) -> None:
        """Decide once: faster or slower. `others_pressure`: share of time in which somebody else
        than the scan waited for a disk."""
        if self._limits.fixed_bytes_per_s:
            return
        since_s = self._decreased_at_s + SETTLE_S
        compared = self._latencies.compared(now_s, since_s)
        if compared is not None:  # clients of ours know better: their reads are pressure, too
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
            if now_s >= self._decreased_at_s + CALM_S:  # there is nobody any more for whom
                self._is_probing, self._too_much = True, float("inf")  # it was too much
            self._rate *= self._growth
        elif compared is not None:
            self._rate *= self._growth
        # else clients read, and nothing is known yet of how the present rate hurts them
        self._rate = min(max(self._rate, self.lowest_bytes_per_s), self._highest)

    @property
    def _growth(self) -> float:
        if self._is_probing:
            return 2.0
        return INCREASE if self._rate < CAREFUL * self._too_much else CAREFUL_INCREASE


class Budget:
    """The bytes that may be read: a token bucket of `BURST_S`."""

    def __init__(self, now_s: float) -> None:
        self._due_s = now_s

    def delay_s(self, now_s: float, length_bytes: int, bytes_per_s: float) -> float:
        """Account for one read; return the seconds until the next. A rate of 0 is no limit."""
        if bytes_per_s:
            self._due_s = max(self._due_s, now_s - BURST_S) + length_bytes / bytes_per_s
        return max(0.0, self._due_s - now_s)


class Pacer:
    """Says after each read of a scan how long to wait."""

    def __init__(self, limits: PaceLimits, latencies: Latencies, now_s: float) -> None:
        self._limits = limits
        self._latencies = latencies
        self._budget = Budget(now_s)
        self._is_changed = False  # the limits, since the last read
        self._adjusted_at_s = now_s
        self._read_bytes = 0
        self._reading_s = 0.0
        self.rate = RateControl(limits, latencies)

    def change(self, limits: PaceLimits) -> None:
        """Keep to other limits from now on; another thread may do so. What was read before is paid
        for: at a rate that was far too low it would take hours."""
        self._limits = limits
        self.rate.change(limits)
        self._is_changed = True

    def piece_bytes(self, now_s: float) -> int:
        """Return how much to read at once at most; 0 for no limit.

        While clients read, a large read is a convoy that all who come wait behind: at a low rate
        few of them do, and those few are the slowest hundredth.
        """
        if self._limits.fixed_bytes_per_s or not self._latencies.are_recent(now_s):
            return 0
        return PIECE_BYTES

    def is_time_to_adjust(self, now_s: float) -> bool:
        """Whether `adjust` is due."""
        return now_s - self._adjusted_at_s >= ADJUST_S

    def adjust(self, now_s: float, others_pressure: float) -> None:
        """Let the rate follow what was measured."""
        self._adjusted_at_s = now_s
        if self._reading_s > 0:
            self.rate.reached(self._read_bytes / self._reading_s)
            self._read_bytes, self._reading_s = 0, 0.0
        self.rate.adjust(now_s, others_pressure)

    def delay_s(self, now_s: float, length_bytes: int, took_s: float = 0.0) -> float:
        """Account for a read that has ended; return how long to wait before the next."""
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
class Stall:
    """The kernel's pressure of I/O (PSI, `some`): microseconds in which a task waited."""

    at_s: float
    total_us: int
    own_s: float  # seconds that our own scans spent reading until then


def pressure_of_others(first: Stall, second: Stall) -> float:
    """Return the share of time in which others than our scans waited for a disk, at least.

    A scan waits for its reads, and the kernel counts that too; what exceeds it is others'.
    """
    duration_s = second.at_s - first.at_s
    if duration_s <= 0:
        return 0.0
    waited_s = (second.total_us - first.total_us) / 1e6 - (second.own_s - first.own_s)
    return min(1.0, max(0.0, waited_s / duration_s))


def parse_stall_us(text: str) -> int:
    """Return `total` of the `some` line of /proc/pressure/io. Raise ValueError."""
    for line in text.splitlines():
        kind, *fields = line.split()
        if kind == "some":
            values = dict(field.split("=", 1) for field in fields)
            return int(values["total"])
    raise ValueError("there is no line of `some`")
