"""The weeks before, as a picture and in words."""

import re
from collections.abc import Sequence

from health.cluster_verdict import DataVerdict
from scm.api.cluster_status.status_history import StatusHistoryData
from scm.api.pages.history_page import history
from scm.api.pages.node_pages import TEMPLATES
from scm.state.history.interval_samples import (
    DAY_MS,
    HOUR_MS,
    NEVER_VERIFIED,
    StatusSample,
    VerdictChange,
)

NOW_MS = 1_000 * DAY_MS
BEGIN_MS = NOW_MS - 21 * DAY_MS


def hour(number: int, verdict: DataVerdict = DataVerdict.WHOLE, **facts: int) -> StatusSample:
    """Return the sample of an hour, counted from three weeks ago."""
    return StatusSample(1, BEGIN_MS + number * HOUR_MS, verdict, **facts)


def shown(hours: Sequence[StatusSample], turns: Sequence[VerdictChange] = ()) -> str:
    """Return the history as the page of the cluster shows it."""
    facts = history(StatusHistoryData(([], hours, []), turns), NOW_MS)
    return TEMPLATES.get_template("history.html.j2").render(history=facts)


def boxes(text: str) -> list[tuple[str, float, float]]:
    """Return what the picture says: words, and from which hour on for how many."""
    found = re.findall(
        r'<rect x="([\d.]+)" width="([\d.]+)" height="26" fill="[^"]+"><title>([\w ]+)<', text
    )
    hours = 21 * 24 / 1000
    return [(word, round(float(x) * hours), round(float(w) * hours)) for x, w, word in found]


def test_hours_of_one_kind_are_one_box_and_a_gap_is_none() -> None:
    """Time without samples is not drawn, because it is not known to be whole."""
    samples = [*map(hour, range(100)), hour(100, DataVerdict.DEGRADED), *map(hour, range(200, 504))]

    found = boxes(shown(samples))

    assert [("whole", 0, 100), ("not whole", 100, 1), ("whole", 200, 304)] == found


def test_samples_out_of_range_are_not_drawn() -> None:
    """A clock that was ahead once does not hide the present."""
    samples = [hour(-5), hour(3, DataVerdict.UNKNOWN), hour(600)]

    assert [("not known", 3, 1)] == boxes(shown(samples))


def test_a_curve_says_its_largest_number_and_leaves_out_what_is_not_known() -> None:
    """A curve of which nothing is known is not drawn."""
    samples = [
        hour(number, moved_bytes=moved_bytes, oldest_scan_at_ms=NEVER_VERIFIED)
        for number, moved_bytes in ((1, 2048), (2, 1024), (3, 0))
    ]

    text = shown(samples)

    assert "Bytes that copies and repairs moved, an hour: at most 2.0 KiB" in text
    assert "Closed containers that were not whole: at most 0" in text
    assert ["86.0", "43.0"] == re.findall(r'height="([\d.]+)" fill="var\(--fill\)', text)
    assert "Age of the oldest verification" not in text


def test_changes_are_told_with_their_reason_the_newest_first() -> None:
    """Each lasted until the next, the last until now."""
    turns = [
        VerdictChange(NOW_MS - 3 * HOUR_MS, DataVerdict.UNKNOWN, "The control plane started"),
        VerdictChange(NOW_MS - HOUR_MS, DataVerdict.DEGRADED, "1 <volume> failed"),
    ]

    text = shown([], turns)

    newest, before = text.index("1 &lt;volume&gt; failed"), text.index("The control plane started")
    assert newest < before
    assert ["1 h", "2 h"] == re.findall(r'data-l="duration">([^<]+)<', text)
