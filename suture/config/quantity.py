"""Sizes, times and rates as people write and read them: `20MiB/s`, `7d`, `500GiB`, `9 d 2 h`.

A size without a prefix of two letters is decimal, as on the box of a disk: `1GB` is 10^9 bytes,
`1GiB` is 2^30. A time may have several parts: `1d12h`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SIZES_BYTES: Final = {
    "B": 1,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGTP", start=1)},
}
TIMES_MS: Final = {
    "ms": 1,
    "s": 1000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
SHOWN_BYTES: Final = ("PiB", "TiB", "GiB", "MiB", "KiB", "B")
SHOWN_TIMES: Final = ("d", "h", "min", "s", "ms")
TEXT_CHARACTERS_MAX: Final = 64

_NUMBER: Final = r"\d+(?:\.\d+)?"
_BARE: Final = re.compile(_NUMBER)
_MINUTES: Final = re.compile(r"(?<=\d)m(?![a-z])")
_SIZE: Final = re.compile(rf"({_NUMBER}) ?({'|'.join(SIZES_BYTES)})")
_PART: Final = re.compile(rf"({_NUMBER}) ?({'|'.join(sorted(TIMES_MS, key=len, reverse=True))}) ?")


def parse_bytes(text: str) -> int:
    """Return the number of bytes in a text such as `500GiB`. Raise ValueError for an unknown unit
    or a fraction of a byte."""
    from decimal import Decimal  # imported late, because formatting does not need it

    match = _SIZE.fullmatch(text[:TEXT_CHARACTERS_MAX])
    if match is None:
        raise ValueError(f"invalid size {text!r}: expected a form like 500GiB, 20MiB or 4096B")
    value_bytes = Decimal(match[1]) * SIZES_BYTES[match[2]]
    if value_bytes != int(value_bytes):
        raise ValueError(f"invalid size {text!r}: expected a whole number of bytes")
    return int(value_bytes)


def parse_bytes_per_s(text: str) -> int:
    """Return the bytes per second in a text such as `20MiB/s`. Raise ValueError if the text is
    invalid."""
    size, slash, unit = text.partition("/")
    if not slash or unit.strip() != "s":
        raise ValueError(f"invalid rate {text!r}: expected a form like 20MiB/s")
    try:
        return parse_bytes(size.strip())
    except ValueError:
        raise ValueError(f"invalid rate {text!r}: expected a form like 20MiB/s") from None


def parse_duration_s(text: str) -> float:
    """Return the seconds in a text such as `7d` or `1d12h`. Raise ValueError if the text is
    invalid."""
    from decimal import Decimal

    total_ms, at = Decimal(0), 0
    limited = text[:TEXT_CHARACTERS_MAX]
    seen: list[int] = []
    while match := _PART.match(limited, at):
        seen.append(TIMES_MS[match[2]])
        total_ms += Decimal(match[1]) * TIMES_MS[match[2]]
        at = match.end()
    if not at or at != len(text) or seen != sorted(set(seen), reverse=True):
        raise ValueError(f"invalid time {text!r}: expected a form like 7d, 1d12h, 90s or 250ms")
    return float(total_ms / 1000)


def parse_typed_duration_s(text: str) -> float:
    """Return the seconds in a duration from a command line. `m` means minutes, and a bare number
    means seconds. Raise ValueError if the text is invalid."""
    if _BARE.fullmatch(text):
        return float(text)
    return parse_duration_s(_MINUTES.sub("min", text))


def bytes_text(value_bytes: int) -> str:
    """Return the size in the largest unit that gives a whole number, readable by `parse_bytes`."""
    for unit in SHOWN_BYTES:
        if value_bytes and value_bytes % SIZES_BYTES[unit] == 0:
            return f"{value_bytes // SIZES_BYTES[unit]}{unit}"
    return "0B"


def duration_text(duration_s: float) -> str:
    """Return the time in whole units, largest first, readable by `parse_duration_s`."""
    left_ms = round(duration_s * 1000)
    parts = []
    for unit in SHOWN_TIMES:
        count, left_ms = divmod(left_ms, TIMES_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_duration(duration_s: float) -> str:
    """Return a time in the largest unit that fits and the next smaller one, such as `9 d 2 h`. Omit
    the smaller one if it is zero."""
    whole_s = round(duration_s)
    for (unit, unit_s), (minor, minor_s) in (
        (("d", 86_400), ("h", 3600)),
        (("h", 3600), ("min", 60)),
        (("min", 60), ("s", 1)),
    ):
        if whole_s >= unit_s:
            rest = whole_s % unit_s // minor_s
            return f"{whole_s // unit_s} {unit}" + (f" {rest} {minor}" if rest else "")
    return f"{whole_s} s"


@dataclass(frozen=True, slots=True)
class OptionUnit:
    """The unit of an option: its name, and the parser for texts with any unit of the same kind."""

    name: str
    parse: Callable[[str], float]

    def __call__(self, value: object) -> object:
        """Return a number unchanged, and a text such as `7d` or `20MiB` converted to this unit.
        Raise ValueError for a boolean or an invalid text."""
        if isinstance(value, bool):
            raise ValueError(f"invalid value {value}: expected a number of {self.name}")  # noqa: TRY004 - pydantic's
        return self.parse(value) if isinstance(value, str) else value
