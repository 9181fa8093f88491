"""Windows of the week: their form, and when they are open."""

from datetime import UTC, datetime

import pytest

from suture.config.week_windows import is_open, parse_week_windows

MONDAY = datetime(2024, 1, 1, tzinfo=UTC)  # a Monday, as the calendar says


def at(day: int, text: str) -> int:
    """Return a time of the week that begins with Monday, 1 January 2024, in milliseconds."""
    hour, minute = map(int, text.split(":"))
    return int(MONDAY.replace(day=1 + day, hour=hour, minute=minute).timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "opened", "closed"),
    [
        ("mon-fri 20:00-06:00", [(0, "20:00"), (4, "23:59"), (5, "05:59")], [(5, "20:00")]),
        ("sun 22:00-02:00", [(6, "23:00"), (0, "01:59")], [(0, "02:00"), (5, "23:00")]),
        ("sat-mon 00:00-24:00", [(5, "00:00"), (6, "12:00"), (0, "23:59")], [(1, "00:00")]),
        ("01:00-02:00", [(day, "01:30") for day in range(7)], [(3, "02:00"), (3, "00:59")]),
        ("Wed 08:00-09:00, thu 10:00-11:00", [(2, "08:30"), (3, "10:00")], [(2, "10:30")]),
    ],
)
def test_windows_are_open_in_their_times_only(
    text: str, opened: list[tuple[int, str]], closed: list[tuple[int, str]]
) -> None:
    assert [True] * len(opened) == [is_open(text, at(*moment)) for moment in opened]
    assert [False] * len(closed) == [is_open(text, at(*moment)) for moment in closed]


@pytest.mark.parametrize(
    "text", ["", "mon", "10:00", "mon 10:00-10:00", "25:00-26:00", "x 01:00-02:00", "1:00-2:00"]
)
def test_invalid_windows_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="invalid window"):
        parse_week_windows(text)


def test_number_of_windows_is_limited() -> None:
    with pytest.raises(ValueError, match="21 are more than 20"):
        parse_week_windows(", ".join(["01:00-02:00"] * 21))
