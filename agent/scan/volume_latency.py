"""Detection of volumes that are much slower than the other volumes of this host, for reports only.

The kernel counts completed reads and writes, and their duration, for each disk. A window is the
difference of these counters over one minute. The latency of a volume is compared with the median of
the other volumes in the same window. A volume is slow in a window if its latency is above FLOOR_MS,
above TIMES times that median, and above the median plus DEVIATIONS times the spread of the other
volumes.

A volume is reported as slow if it was slow in most of the last windows. Therefore, one busy minute
does not cause a report, and neither does load on all disks of the host.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import structlog

from agent.store.files.devices import DiskCounters, block_device, counts_of
from agent.store.index.facts import VolumeFacts
from suture.runtime.loop import RetryAfter, Step

WINDOW_S: Final = 60.0
WINDOWS_KEPT: Final = 10
WINDOWS_MIN: Final = 5  # minimum number of windows, before a volume can be called slow
SLOW_SHARE: Final = 0.7  # share of slow windows that makes a volume slow
COUNT_MIN: Final = 20  # windows with fewer operations are not used
TIMES: Final = 3.0  # factor over the median latency of the other volumes
DEVIATIONS: Final = 5.0  # distance from that median, in median absolute deviations
FLOOR_MS: Final = 20.0  # lower latencies are never slow
KINDS: Final = ("reads", "writes")

log = structlog.get_logger()

Latencies = Mapping[str, float]
"""Milliseconds per operation by volume id, for volumes with enough operations."""


@dataclass(frozen=True, slots=True)
class VolumeLatency:
    """Mean latencies of a volume in the last window, in milliseconds per operation.

    `slow` is a description if the volume is slow, and otherwise "".
    """

    read_ms: float = 0.0
    write_ms: float = 0.0
    slow: str = ""


def slower_than_siblings(latencies: Latencies) -> dict[str, bool]:
    """Return, by volume id, whether the volume is slow in one window.

    Omit a volume if there is no other volume to compare with. No I/O.
    """
    judged = {}
    for volume, own_ms in latencies.items():
        others = [value for name, value in latencies.items() if name != volume]
        if not others:
            continue
        middle = median(others)
        spread = median(abs(value - middle) for value in others)
        limit_ms = max(FLOOR_MS, TIMES * middle, middle + DEVIATIONS * spread)
        judged[volume] = own_ms > limit_ms
    return judged


def is_lasting(windows: Sequence[bool]) -> bool:
    """Return whether a volume was slow in at least SLOW_SHARE of these windows.

    Return False if there are fewer than WINDOWS_MIN windows. No I/O.
    """
    return len(windows) >= WINDOWS_MIN and sum(windows) >= SLOW_SHARE * len(windows)


def latencies_between(
    before: Mapping[str, DiskCounters], after: Mapping[str, DiskCounters]
) -> dict[str, Latencies]:
    """Return the latencies in a window, by kind of operation and volume id.

    `before` and `after` have the counters at its start and end. Omit volumes with fewer than
    COUNT_MIN operations. No I/O.
    """
    found: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    for volume in before.keys() & after.keys():
        old, new = before[volume], after[volume]
        for kind, count, spent_ms in (
            ("reads", new.reads - old.reads, new.read_ms - old.read_ms),
            ("writes", new.writes - old.writes, new.write_ms - old.write_ms),
        ):
            if count >= COUNT_MIN and spent_ms >= 0:
                found[kind][volume] = spent_ms / count
    return dict(found)


@dataclass(slots=True)
class _History:
    windows: dict[str, deque[bool]] = field(
        default_factory=lambda: {kind: deque(maxlen=WINDOWS_KEPT) for kind in KINDS}
    )
    latest_ms: dict[str, float] = field(default_factory=dict)
    others_ms: dict[str, float] = field(default_factory=dict)


def counted(volumes: Sequence[VolumeFacts]) -> dict[str, DiskCounters]:
    """Return the kernel's I/O counters of the disk of each volume, by volume id.

    Omit volumes without counters.
    """
    found = {}
    for volume in volumes:
        device = None if volume.failed else block_device(Path(volume.path))
        counts = None if device is None else counts_of(device)
        if counts is not None:
            found[volume.volume_id] = counts
    return found


class LatencyWatch:
    """Worker that compares the latencies of volumes. Any thread may call `word`."""

    name = "slow-disks"

    def __init__(self, count: Callable[[], Mapping[str, DiskCounters]]) -> None:
        """Create a worker. `count` returns the kernel's I/O counters by volume id."""
        self._count = count
        self._before: Mapping[str, DiskCounters] | None = None
        self._histories: dict[str, _History] = {}
        self._words: dict[str, VolumeLatency] = {}

    def word(self, volume_id: str) -> VolumeLatency:
        """Return the last latencies of a volume, and whether it is slow."""
        return self._words.get(volume_id, VolumeLatency())

    def step(self) -> Step:
        """Evaluate the period that ends now (one minute), and begin the next one."""
        after = self._count()
        if self._before is not None:
            for kind, latencies in latencies_between(self._before, after).items():
                self._add_sample(kind, latencies)
            for volume_id in after:
                self._tell(volume_id)
        self._before = after
        return RetryAfter(WINDOW_S)

    def _add_sample(self, kind: str, latencies: Latencies) -> None:
        for volume_id, own_ms in latencies.items():
            history = self._histories.setdefault(volume_id, _History())
            history.latest_ms[kind] = own_ms
        for volume_id, is_slow in slower_than_siblings(latencies).items():
            history = self._histories[volume_id]
            history.windows[kind].append(is_slow)
            others = [value for name, value in latencies.items() if name != volume_id]
            history.others_ms[kind] = median(others)

    def _tell(self, volume_id: str) -> None:
        history = self._histories.get(volume_id, _History())
        slow = [
            f"{kind} take {history.latest_ms[kind]:.0f} ms, on its siblings "
            f"{history.others_ms[kind]:.0f} ms"
            for kind in KINDS
            if is_lasting(history.windows[kind])
        ]
        before = self.word(volume_id)
        word = VolumeLatency(
            history.latest_ms.get("reads", 0.0),
            history.latest_ms.get("writes", 0.0),
            "; ".join(slow),
        )
        self._words[volume_id] = word
        if bool(before.slow) != bool(word.slow):
            if word.slow:
                log.warning("volume_slow", volume_id=volume_id, why=word.slow)
            else:
                log.info("volume_latency_recovered", volume_id=volume_id)
