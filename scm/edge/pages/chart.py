"""Charts of the last weeks: SVG that needs no script, with a text for screen readers."""

from collections.abc import Callable, Sequence
from typing import Final

from agent.observe.markup import Markup, element, html, joined, moment
from health.cluster_verdict import DataVerdict
from scm.state.history.interval_samples import DAY_MS, HOUR_MS, StatusSample

WIDTH: Final = 1000
RIBBON: Final = 26
LINE: Final = 90
WEEKS_D: Final = 21
WEEKS_MS: Final = WEEKS_D * DAY_MS
COLOURS: Final = {
    DataVerdict.WHOLE: "var(--good)",
    DataVerdict.UNKNOWN: "var(--doubt)",
    DataVerdict.UNWELL: "var(--bad)",
}
WORDS: Final = {
    DataVerdict.WHOLE: "whole",
    DataVerdict.UNKNOWN: "not known",
    DataVerdict.UNWELL: "not whole",
}


def weeks(samples: Sequence[StatusSample], now_ms: int) -> Markup:
    """Return the verdicts of the last three weeks by the hour, with gaps where nothing was
    recorded.
    """
    begin_ms = now_ms - WEEKS_MS
    shown = [sample for sample in samples if begin_ms <= sample.at_ms <= now_ms]
    boxes = "".join(
        _box(verdict, _x(start_ms, begin_ms), _x(stop_ms, begin_ms))
        for verdict, start_ms, stop_ms in _runs(shown)
    )
    keys = joined(
        *(
            joined(Markup(f'<span class=k style="background:{COLOURS[verdict]}"></span>'), word)
            for verdict, word in WORDS.items()
        ),
        Markup('<span class=k style="background:var(--line)"></span>'),
        "nobody watched",
    )
    days = [moment(begin_ms + number * DAY_MS)[:10] for number in range(0, WEEKS_D + 1, 7)]
    return joined(
        Markup(
            f'<svg class="strip" viewBox="0 0 {WIDTH} {RIBBON}" preserveAspectRatio="none" '
            f'role=img aria-label="what was said of the data in the last three weeks">'
            f'<rect width="{WIDTH}" height="{RIBBON}" fill="var(--line)"/>{boxes}</svg>'
        ),
        element("p", *(element("span", day) for day in days), kind="soft scale"),
        element("p", keys, kind="soft"),
    )


def curve(
    title: str,
    samples: Sequence[StatusSample],
    now_ms: int,
    value: Callable[[StatusSample], float | None],
    spoken: Callable[[float], str],
) -> Markup:
    """Return one number of the last three weeks by the hour, from 0 to the largest; `spoken`
    formats the largest.
    """
    begin_ms = now_ms - WEEKS_MS
    points = [
        (_x(sample.at_ms, begin_ms), number)
        for sample in samples
        if begin_ms <= sample.at_ms <= now_ms and (number := value(sample)) is not None
    ]
    if not points:
        return Markup("")
    most = max(number for _, number in points)
    top = most or 1.0
    path = "".join(
        f'<rect x="{x:.1f}" y="{LINE - number / top * (LINE - 4):.1f}" width="2" '
        f'height="{number / top * (LINE - 4):.1f}" fill="var(--fill)"/>'
        for x, number in points
        if number
    )
    return joined(
        element("p", f"{title}: at most {spoken(most)}", kind="soft"),
        Markup(
            f'<svg class="curve" viewBox="0 0 {WIDTH} {LINE}" preserveAspectRatio="none" role=img '
            f'aria-label="{html(title)}">'
            f'<line x1="0" x2="{WIDTH}" y1="{LINE - 1}" y2="{LINE - 1}" stroke="var(--line)"/>'
            f"{path}</svg>"
        ),
    )


def _runs(samples: Sequence[StatusSample]) -> list[tuple[DataVerdict, int, int]]:
    """Return stretches of one verdict: the verdict, its start and its end."""
    runs: list[tuple[DataVerdict, int, int]] = []
    for sample in samples:
        stop_ms = sample.at_ms + HOUR_MS
        if runs and runs[-1][0] is sample.verdict and runs[-1][2] == sample.at_ms:
            runs[-1] = (sample.verdict, runs[-1][1], stop_ms)
        else:
            runs.append((sample.verdict, sample.at_ms, stop_ms))
    return runs


def _box(verdict: DataVerdict, start: float, stop: float) -> str:
    return (
        f'<rect x="{start:.1f}" width="{max(0.5, min(WIDTH, stop) - start):.1f}" '
        f'height="{RIBBON}" fill="{COLOURS[verdict]}"><title>{WORDS[verdict]}</title></rect>'
    )


def _x(at_ms: int, begin_ms: int) -> float:
    return max(0.0, (at_ms - begin_ms) / WEEKS_MS * WIDTH)
