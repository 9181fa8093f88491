"""Windows of time in a week, such as `mon-fri 20:00-06:00, sat-sun 00:00-24:00`, in UTC. No I/O.

A window without days applies to every day. If the end of a window is earlier than its start, the
window ends on the next day.
"""

import re
from typing import Final

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MINUTES_OF_DAY: Final = 24 * 60
MINUTES_OF_WEEK: Final = len(DAYS) * MINUTES_OF_DAY
EPOCH_WEEKDAY: Final = DAYS.index("thu")  # 1 January 1970
WINDOWS_MAX: Final = 20
FORM: Final = "expected a form like mon-fri 20:00-06:00, sat 00:00-24:00"

_DAY: Final = "|".join(DAYS)
_TIME: Final = r"(?:[01]\d|2[0-3]):[0-5]\d|24:00"
_WINDOW: Final = re.compile(rf"(?:({_DAY})(?:-({_DAY}))? )?({_TIME})-({_TIME})")


def parse_week_windows(text: str) -> tuple[tuple[int, int], ...]:
    """Return a pair for each window: the minute of the week at which it starts, and its length in
    minutes. Raise ValueError if the text is invalid."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > WINDOWS_MAX:
        raise ValueError(f"invalid windows: {len(parts)} are more than {WINDOWS_MAX}")
    return tuple(window for part in parts for window in _windows(part))


def _windows(part: str) -> list[tuple[int, int]]:
    match = _WINDOW.fullmatch(part.lower())
    if match is None:
        raise ValueError(f"invalid window {part!r}: {FORM}")
    first, last, begin, end = match.groups()
    begin_minute, end_minute = _minute(begin), _minute(end)
    if begin_minute == end_minute:
        raise ValueError(f"invalid window {part!r}: its begin and end are equal")
    length = (end_minute - begin_minute) % MINUTES_OF_DAY or MINUTES_OF_DAY
    start = DAYS.index(first) if first else 0
    stop = DAYS.index(last or first) if first else len(DAYS) - 1
    count = (stop - start) % len(DAYS) + 1
    days = [(start + number) % len(DAYS) for number in range(count)]
    return [(day * MINUTES_OF_DAY + begin_minute, length) for day in days]


def _minute(text: str) -> int:
    hour, minute = text.split(":")
    return int(hour) * 60 + int(minute)


def is_open(text: str, now_ms: int) -> bool:
    """Return True if the time `now_ms` is in one of the windows that `text` describes."""
    minutes = now_ms // 60_000 + EPOCH_WEEKDAY * MINUTES_OF_DAY
    return any(
        (minutes - start) % MINUTES_OF_WEEK < length for start, length in parse_week_windows(text)
    )
