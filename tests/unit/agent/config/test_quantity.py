"""Sizes, times and rates: what people write is what is meant."""

import pytest

from suture.config.quantity import (
    bytes_text,
    duration_text,
    parse_bytes,
    parse_bytes_per_s,
    parse_duration_s,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500GiB", 500 * 2**30), ("1.5MiB", 1_572_864), ("64MB", 64_000_000), ("4096 B", 4096)],
)
def test_a_size_is_read(text: str, expected: int) -> None:
    """Binary and decimal prefixes, with or without a space."""
    assert expected == parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7d", 604_800), ("1d12h", 129_600), ("90 s", 90), ("250ms", 0.25), ("1h 30min", 5400)],
)
def test_a_time_is_read(text: str, expected: float) -> None:
    """There are one or several units, the largest first."""
    assert expected == parse_duration_s(text)


def test_a_rate_is_read() -> None:
    """A rate is a size for each second."""
    assert 20 * 2**20 == parse_bytes_per_s("20MiB/s")


@pytest.mark.parametrize("text", ["", "7", "7d", "1.5B", "GiB", "-1MiB", "1 mib", "1MiB/s"])
def test_invalid_size_is_refused(text: str) -> None:
    """A missing or unknown unit, half a byte and wrong case are refused."""
    with pytest.raises(ValueError, match=r"expected a form like|whole number"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "7", "7m", "12h1d", "1d1d", "1MiB", "-1s", "1d x", "9" * 70])
def test_invalid_duration_is_refused(text: str) -> None:
    """`m` could be a minute or a month. Units in rising order or repeated units are typing
    errors.
    """
    with pytest.raises(ValueError, match="expected a form like"):
        parse_duration_s(text)


@pytest.mark.parametrize("text", ["20MiB", "20MiB/min", "20/s", "/s"])
def test_invalid_rate_is_refused(text: str) -> None:
    """A size without a time is no rate."""
    with pytest.raises(ValueError, match="20MiB/s"):
        parse_bytes_per_s(text)


@pytest.mark.parametrize("value_bytes", [0, 1, 1000, 4096, 3 * 2**20, 5 * 2**30, 2**50])
def test_a_shown_size_reads_as_itself(value_bytes: int) -> None:
    """The shown form can be pasted into a config file."""
    assert value_bytes == parse_bytes(bytes_text(value_bytes))


@pytest.mark.parametrize("duration_s", [0, 0.05, 1, 90, 900, 86_400, 90_061.5])
def test_a_shown_time_reads_as_itself(duration_s: float) -> None:
    """The shown form can be pasted into a config file."""
    assert duration_s == parse_duration_s(duration_text(duration_s))
