"""The history on the cluster's web page: verdicts, three charts, and a table of 21 days."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from health.cluster_verdict import DataVerdict
from scm.api.cluster_status.status_history import StatusHistoryData
from scm.state.history.interval_samples import (
    DAY_MS,
    HOUR_MS,
    NEVER_VERIFIED,
    NOTHING_TO_VERIFY,
    StatusSample,
)
from suture.config.quantity import format_duration
from suture.errors import size_text
from suture.pages.html import moment

DAYS_SHOWN_MAX: Final = 21
TURNS_SHOWN_MAX: Final = 10
HOURS: Final = 1  # levels of samples
DAYS: Final = 2
WIDTH: Final = 1000  # size of both pictures, in the units of the template
HEIGHT_MAX: Final = 86  # height of the highest bar, in the units of the template
WEEKS_D: Final = 21
WEEKS_MS: Final = WEEKS_D * DAY_MS
COLOURS: Final = {
    DataVerdict.WHOLE: "var(--good)",
    DataVerdict.UNKNOWN: "var(--doubt)",
    DataVerdict.DEGRADED: "var(--bad)",
}
WORDS: Final = {
    DataVerdict.WHOLE: "whole",
    DataVerdict.UNKNOWN: "not known",
    DataVerdict.DEGRADED: "not whole",
}


def history(past: StatusHistoryData, now_ms: int) -> dict[str, object]:
    """Return the values that the history template shows: verdicts, charts, and a table of days."""
    begin_ms = now_ms - WEEKS_MS
    hours = past.samples[HOURS] if past.samples else ()
    days = past.samples[DAYS] if past.samples else ()
    shown = [sample for sample in hours if begin_ms <= sample.at_ms <= now_ms]
    curves = (
        _curve("Closed containers that were not whole", shown, now_ms, _to_do, "{:,.0f}".format),
        _curve("Bytes that copies and repairs moved, an hour", shown, now_ms, _moved, size_text),
        _curve("Age of the oldest verification", shown, now_ms, _age, format_duration),
    )
    ends_ms = [*(turn.at_ms for turn in past.turns[1:]), now_ms]
    turns = [
        (turn, max(0, end_ms - turn.at_ms) / 1000)
        for turn, end_ms in zip(past.turns, ends_ms, strict=False)
    ]
    return {
        "words": WORDS,
        "colours": COLOURS,
        "ribbon": _ribbon(shown, begin_ms),
        "dates": [moment(begin_ms + number * DAY_MS)[:10] for number in range(0, WEEKS_D + 1, 7)],
        "curves": [curve for curve in curves if curve["bars"]],
        "turns": turns[: -TURNS_SHOWN_MAX - 1 : -1],
        "days": days[: -DAYS_SHOWN_MAX - 1 : -1],
    }


def _ribbon(
    samples: Sequence[StatusSample], begin_ms: int
) -> list[tuple[DataVerdict, float, float]]:
    """Return the periods in which the verdict stayed the same.

    Each period has the verdict, its position and its width. Position and width are in the units of
    the chart, which is WIDTH units wide. Hours without a sample are gaps between the periods.
    """
    runs: list[tuple[DataVerdict, int, int]] = []
    for sample in samples:
        stop_ms = sample.at_ms + HOUR_MS
        if runs and runs[-1][0] is sample.verdict and runs[-1][2] == sample.at_ms:
            runs[-1] = (sample.verdict, runs[-1][1], stop_ms)
        else:
            runs.append((sample.verdict, sample.at_ms, stop_ms))
    found = []
    for verdict, start_ms, stop_ms in runs:
        x = _x(start_ms, begin_ms)
        found.append((verdict, x, max(0.5, min(WIDTH, _x(stop_ms, begin_ms)) - x)))
    return found


def _curve(
    title: str,
    samples: Sequence[StatusSample],
    now_ms: int,
    value: Callable[[StatusSample], float | None],
    spoken: Callable[[float], str],
) -> dict[str, Any]:
    """Return the values of one chart for the template.

    They are the title, one bar per hour, and the largest value as text. The heights of the bars are
    relative to the largest value, and `spoken` formats the largest value.
    """
    points = [
        (_x(sample.at_ms, now_ms - WEEKS_MS), number)
        for sample in samples
        if (number := value(sample)) is not None
    ]
    most = max((number for _, number in points), default=0)
    bars = [(x, number / (most or 1.0) * HEIGHT_MAX) for x, number in points]
    return {"title": title, "most": spoken(most), "bars": bars}


def _x(at_ms: int, begin_ms: int) -> float:
    return max(0.0, (at_ms - begin_ms) / WEEKS_MS * WIDTH)


def _to_do(sample: StatusSample) -> float:
    return sample.faulty_count


def _moved(sample: StatusSample) -> float:
    return sample.moved_bytes


def _age(sample: StatusSample) -> float | None:
    if sample.oldest_scan_at_ms in {NOTHING_TO_VERIFY, NEVER_VERIFIED}:
        return None
    return max(0, sample.at_ms + DAY_MS // 24 - sample.oldest_scan_at_ms) / 1000
