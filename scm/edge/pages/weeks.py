"""The cluster's history of the last weeks: verdicts, three curves, and a table of days."""

from collections.abc import Sequence
from typing import Final

from agent.config.quantity import format_duration
from agent.errors import size_text
from agent.observe.markup import Markup, bar, element, joined, moment, table
from scm.edge.overview.chronicle import StatusHistoryData
from scm.edge.pages.chart import WORDS, curve, weeks
from scm.state.history.interval_samples import (
    DAY_MS,
    NEVER_VERIFIED,
    NOTHING_TO_VERIFY,
    StatusSample,
    VerdictChange,
)

DAYS_SHOWN_MAX: Final = 21
TURNS_SHOWN_MAX: Final = 10
HOURS: Final = 1  # levels of samples
DAYS: Final = 2


def history(past: StatusHistoryData, now_ms: int) -> Markup:
    """Return the history for display."""
    hours = past.samples[HOURS] if past.samples else ()
    days = past.samples[DAYS] if past.samples else ()
    return joined(
        weeks(hours, now_ms),
        curve("Closed containers that were not whole", hours, now_ms, _to_do, _count),
        curve("Bytes that copies and repairs moved, an hour", hours, now_ms, _moved, size_text),
        curve("Age of the oldest verification", hours, now_ms, _age, format_duration),
        element("p", "When it changed, the newest first:", kind="soft"),
        _turns(past.turns, now_ms),
        element("p", "The days, each at its worst:", kind="soft"),
        _days(days),
    )


def _turns(turns: Sequence[VerdictChange], now_ms: int) -> Markup:
    ends = [*(turn.at_ms for turn in turns[1:]), now_ms]
    rows = [
        (
            moment(turn.at_ms),
            WORDS[turn.verdict],
            format_duration(max(0, end_ms - turn.at_ms) / 1000),
            turn.text,
        )
        for turn, end_ms in zip(turns, ends, strict=False)
    ]
    return table(("from", "was", "for", "because"), rows[: -TURNS_SHOWN_MAX - 1 : -1])


def _days(days: Sequence[StatusSample]) -> Markup:
    columns = (
        *("day", "was", "#datanodes not heard", "#volumes failed", "#not whole"),
        *("#done", "#failed", "#moved", "used"),
    )
    rows = [
        (
            moment(day.at_ms)[:10],
            WORDS[day.verdict],
            f"{day.silent_count:,}",
            f"{day.failed_volume_count:,}",
            f"{day.to_do_count:,}",
            f"{day.done_count:,}",
            f"{day.failed_count:,}",
            size_text(day.moved_bytes),
            bar(day.used_bytes, day.capacity_bytes),
        )
        for day in reversed(days[-DAYS_SHOWN_MAX:])
    ]
    return table(columns, rows)


def _to_do(sample: StatusSample) -> float:
    return sample.to_do_count


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _moved(sample: StatusSample) -> float:
    return sample.moved_bytes


def _age(sample: StatusSample) -> float | None:
    if sample.oldest_scan_at_ms in {NOTHING_TO_VERIFY, NEVER_VERIFIED}:
        return None
    return max(0, sample.at_ms + DAY_MS // 24 - sample.oldest_scan_at_ms) / 1000
