"""Simulates the closed loop on a hard disk.

The disk has one head, and serves requests in the order of their arrival. Each request takes a seek,
and then time in proportion to its bytes. Time is simulated, so the result is the same on every
machine. Clients read 64 KiB at random moments. The scan reads 4 MiB at a time, or the pieces that
the pacer requests, paced by the real `scanner.scan_rate_control.Pacer`. The latencies of the same
requests are compared with and without the scan, and the worst of several seeds counts.
"""

from dataclasses import dataclass, field
from random import Random

from bench.measure import Measure, at_least, at_most
from scanner.scan_rate_control import Latencies, PaceLimits, Pacer, p99_of

MIB = 1024**2
DISK_BYTES_PER_S = 200 * MIB
SEEK_S = 0.008
CLIENT_BYTES = 64 * 1024
SCAN_BYTES = 4 * MIB
CLIENTS_PER_S = 30.0
DURATION_S = 600.0
WARM_UP_S = 120.0
FLOOR_BYTES_PER_S = MIB
SEEDS = (1, 2, 3, 4, 5)
UNPACED = PaceLimits(fixed_bytes_per_s=2**50)
PACED = PaceLimits(floor_bytes_per_s=FLOOR_BYTES_PER_S)


@dataclass
class Disk:
    """A disk with one head: a request waits until all earlier requests are done."""

    free_at_s: float = 0.0

    def serve(self, at_s: float, length_bytes: int) -> float:
        """Return when the request that arrives at `at_s` is done."""
        begun_s = max(at_s, self.free_at_s)
        self.free_at_s = begun_s + SEEK_S + length_bytes / DISK_BYTES_PER_S
        return self.free_at_s


@dataclass
class Outcome:
    """The result of a run, without the warm-up: the clients' latencies, and the scanned bytes."""

    latencies_s: list[float] = field(default_factory=list)
    scanned_bytes: int = 0

    @property
    def p99_s(self) -> float:
        """The 99th percentile of the latencies of clients' reads."""
        return p99_of(self.latencies_s)

    @property
    def scan_bytes_per_s(self) -> float:
        """The speed of the scan."""
        return self.scanned_bytes / (DURATION_S - WARM_UP_S)


def arrivals(per_s: float, seed: int) -> list[float]:
    """Return the moments at which clients read."""
    random = Random(seed)  # noqa: S311 - requests, not secrets
    moments: list[float] = []
    at_s = 0.0
    while per_s and (at_s := at_s + random.expovariate(per_s)) < DURATION_S:
        moments.append(at_s)
    return moments


def run(clients_per_s: float, limits: PaceLimits | None, seed: int = 1) -> Outcome:
    """Simulate clients and, if `limits` is not None, a scan with these limits; return the
    result."""
    disk, seen, outcome = Disk(), Latencies(), Outcome()
    pacer = Pacer(limits or UNPACED, seen, 0.0)
    scan_at_s = 0.0 if limits is not None else DURATION_S
    waiting = arrivals(clients_per_s, seed)[::-1]
    ended: list[tuple[float, float]] = []  # the host's measurements: only finished reads
    while waiting or scan_at_s < DURATION_S:
        if waiting and waiting[-1] <= scan_at_s:
            at_s = waiting.pop()
            done_s = disk.serve(at_s, CLIENT_BYTES)
            ended.append((done_s, done_s - at_s))
            if at_s >= WARM_UP_S:
                outcome.latencies_s.append(done_s - at_s)
            continue
        if scan_at_s >= DURATION_S:
            break
        scan_bytes = pacer.piece_bytes(scan_at_s) or SCAN_BYTES
        now_s = disk.serve(scan_at_s, scan_bytes)
        for sample in ended:
            seen.add(*sample)
        ended.clear()
        if scan_at_s >= WARM_UP_S:
            outcome.scanned_bytes += scan_bytes
        if pacer.is_time_to_adjust(now_s):
            pacer.adjust(now_s, 0.0)
        scan_at_s = now_s + pacer.delay_s(now_s, scan_bytes, now_s - scan_at_s)
    for at_s in reversed(waiting):
        done_s = disk.serve(at_s, CLIENT_BYTES)
        outcome.latencies_s.append(done_s - at_s)
    return outcome


def ratio(seed: int, limits: PaceLimits) -> float:
    """Return the clients' p99 with a scan, divided by the p99 of the same requests without a
    scan."""
    return run(CLIENTS_PER_S, limits, seed).p99_s / run(CLIENTS_PER_S, None, seed).p99_s


def simulated() -> list[Measure]:
    """Measure the effect of a paced and of an unpaced scan on clients, and the speed of a paced
    scan on an idle disk."""
    idle, most = run(0.0, PACED), run(0.0, UNPACED)
    share = idle.scan_bytes_per_s / most.scan_bytes_per_s
    beside = run(CLIENTS_PER_S, PACED).scan_bytes_per_s
    alone = "no scan, simulated disk"
    worst = max(ratio(seed, PACED) for seed in SEEDS)
    return [
        at_most("client p99, scan beside it", worst, "x", 1.2, compared_with=alone),
        Measure("client p99, unpaced scan", ratio(1, UNPACED), "x", alone),
        Measure("scan speed beside clients", beside / MIB, "MiB/s", "simulated disk"),
        at_least("scan speed, idle simulated disk", share, "x", 0.9, compared_with="no pacing"),
    ]
