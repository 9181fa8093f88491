"""Converts between numbers and texts with units: `20MiB/s`, `7d`, `500GiB`, `9 d 2 h`.

The prefixes k, M, G, T and P are decimal, as in the sizes that disk vendors state: `1GB` is 10^9
bytes. The prefixes Ki, Mi, Gi, Ti and Pi are binary: `1GiB` is 2^30 bytes. A time may have several
parts: `1d12h`.
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
    """Return the number of bytes for a text such as `500GiB`. Raise ValueError if the unit is
    unknown or the number of bytes is not whole."""
    from decimal import Decimal  # imported late, because formatting does not need it

    match = _SIZE.fullmatch(text[:TEXT_CHARACTERS_MAX])
    if match is None:
        raise ValueError(f"invalid size {text!r}: expected a form like 500GiB, 20MiB or 4096B")
    value_bytes = Decimal(match[1]) * SIZES_BYTES[match[2]]
    if value_bytes != int(value_bytes):
        raise ValueError(f"invalid size {text!r}: expected a whole number of bytes")
    return int(value_bytes)


def parse_bytes_per_s(text: str) -> int:
    """Return the number of bytes per second for a text such as `20MiB/s`. Raise ValueError if the
    text is invalid."""
    size, slash, unit = text.partition("/")
    if not slash or unit.strip() != "s":
        raise ValueError(f"invalid rate {text!r}: expected a form like 20MiB/s")
    try:
        return parse_bytes(size.strip())
    except ValueError:
        raise ValueError(f"invalid rate {text!r}: expected a form like 20MiB/s") from None


def parse_duration_s(text: str) -> float:
    """Return the number of seconds for a text such as `7d` or `1d12h`. Raise ValueError if the text
    is invalid."""
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
    """Return the number of seconds for a duration from a command line. In addition to the forms of
    `parse_duration_s`, `m` means minutes, and a number without a unit means seconds. Raise
    ValueError if the text is invalid."""
    if _BARE.fullmatch(text):
        return float(text)
    return parse_duration_s(_MINUTES.sub("min", text))


def bytes_text(value_bytes: int) -> str:
    """Return a number of bytes as text, with the largest unit that gives a whole number.
    `parse_bytes` accepts the text."""
    for unit in SHOWN_BYTES:
        if value_bytes and value_bytes % SIZES_BYTES[unit] == 0:
            return f"{value_bytes // SIZES_BYTES[unit]}{unit}"
    return "0B"


def duration_text(duration_s: float) -> str:
    """Return a time as text with whole numbers of units, the largest unit first. `parse_duration_s`
    accepts the text."""
    left_ms = round(duration_s * 1000)
    parts = []
    for unit in SHOWN_TIMES:
        count, left_ms = divmod(left_ms, TIMES_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_duration(duration_s: float) -> str:
    """Return a time as text in the two largest units that fit, such as `9 d 2 h`. If the second
    number is 0, it is omitted."""
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
    """The unit of an option: its name, and the function that converts a text with any unit of the
    same kind."""

    name: str
    parse: Callable[[str], float]

    def __call__(self, value: object) -> object:
        """Convert a text such as `7d` or `20MiB` to a number in this unit. A number is returned
        unchanged. Raise ValueError for a boolean or an invalid text."""
        if isinstance(value, bool):
            raise ValueError(f"invalid value {value}: expected a number of {self.name}")  # noqa: TRY004 - pydantic's
        return self.parse(value) if isinstance(value, str) else value
