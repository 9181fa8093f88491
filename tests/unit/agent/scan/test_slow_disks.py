"""Which of some disks is slow: by hand, minute by minute."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from agent.scan.volume_latency import (
    COUNT_MIN,
    WINDOW_S,
    WINDOWS_KEPT,
    WINDOWS_MIN,
    LatencyWatch,
    slower_than_siblings,
)
from agent.store.files.devices import DiskCounters
from suture.runtime.loop import RetryAfter


@dataclass
class Disks:
    """Disks whose kernel counts what a test says."""

    totals: dict[str, DiskCounters] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.worker = LatencyWatch(lambda: dict(self.totals))

    def minute(self, read_ms: Mapping[str, float], *, count: int = 100) -> None:
        """Let a minute pass in which reads took so long."""
        if not self.totals:
            self.totals = {name: DiskCounters(0, 0, 0, 0) for name in read_ms}
            self.worker.step()
        for name, each_ms in read_ms.items():
            old = self.totals.get(name, DiskCounters(0, 0, 0, 0))
            spent_ms = old.read_ms + round(each_ms * count)
            self.totals[name] = DiskCounters(old.reads + count, spent_ms, old.writes, old.write_ms)
        assert RetryAfter(WINDOW_S) == self.worker.step()

    def slow(self) -> set[str]:
        """Return which are called slow."""
        return {name for name in self.totals if self.worker.word(name).slow}


EQUAL = {"a": 8.0, "b": 9.0, "c": 10.0, "d": 8.5}


@pytest.mark.parametrize(
    ("latencies", "slow"),
    [
        (EQUAL, set()),
        ({**EQUAL, "d": 80.0}, {"d"}),
        ({**EQUAL, "d": 27.0}, set()),
        ({**EQUAL, "d": 30.0}, {"d"}),
        ({"a": 0.1, "b": 0.1, "c": 5.0}, set()),
        ({"a": 0.1, "b": 0.1, "c": 25.0}, {"c"}),
        ({"a": 5.0, "b": 40.0, "c": 75.0, "d": 140.0}, set()),
        ({"a": 10.0, "b": 90.0}, {"b"}),
        ({"a": 900.0}, set()),
        ({}, set()),
        ({"a": 400.0, "b": 410.0, "c": 390.0}, set()),
    ],
    ids=[
        "equal",
        "ten times as long",
        "a little longer than all",
        "three times the middle",
        "many times, and nobody minds",
        "many times, and long",
        "they differ among each other",
        "of two",
        "alone",
        "none",
        "all are busy",
    ],
)
def test_disk_is_compared_with_the_median_of_its_siblings(
    latencies: Mapping[str, float], slow: set[str]
) -> None:
    """The spread of the siblings' latencies counts, too."""
    assert slow == {name for name, is_slow in slower_than_siblings(latencies).items() if is_slow}


def test_slow_disk_is_reported_after_some_minutes_until_it_recovers() -> None:
    """There must be enough minutes first. The report has the latency, and ends after enough
    healthy minutes.
    """
    disks = Disks()
    for minute in range(WINDOWS_MIN):
        assert set() == disks.slow(), minute
        disks.minute({**EQUAL, "d": 90.0})

    assert {"d"} == disks.slow()
    assert "reads take 90 ms, on its siblings 9 ms" == disks.worker.word("d").slow
    for _ in range(WINDOWS_KEPT):
        disks.minute(EQUAL)
    assert set() == disks.slow()
    assert 8.5 == disks.worker.word("d").read_ms


def test_busy_minutes_do_not_make_a_disk_slow() -> None:
    """Three of ten are not enough."""
    disks = Disks()
    for minute in range(WINDOWS_KEPT):
        disks.minute({**EQUAL, "d": 90.0 if minute in {1, 4, 7} else 8.0})

    assert set() == disks.slow()


def test_few_reads_say_nothing() -> None:
    """
    A disk that does nothing is not judged, and not measured by.
    """
    disks = Disks()
    for _ in range(WINDOWS_KEPT):
        disks.minute({**EQUAL, "d": 90.0}, count=COUNT_MIN - 1)

    assert set() == disks.slow()
    assert 0.0 == disks.worker.word("d").read_ms


def test_counters_that_begin_anew_say_nothing() -> None:
    """
    A disk that was replaced counts from zero: that minute is left out.
    """
    disks = Disks()
    disks.minute(EQUAL)
    disks.totals = {name: DiskCounters(5, 1, 0, 0) for name in EQUAL}

    disks.worker.step()

    assert set() == disks.slow()
