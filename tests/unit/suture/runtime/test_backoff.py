"""Pauses between retries."""

import pytest

from suture.runtime.backoff import backoff_s, jittered_backoff_s


def test_backoff_doubles_up_to_64_times_the_first() -> None:
    """A datanode that never obeys is asked once a minute, not less and less often."""
    pauses = [backoff_s(failures, first_s=1.0) for failures in range(1, 10)]

    assert [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0] == pauses


def test_backoff_ends_at_the_longest_pause() -> None:
    pauses = [backoff_s(failures, first_s=0.5, longest_s=5.0) for failures in (1, 4, 5, 10**9)]

    assert [0.5, 4.0, 5.0, 5.0] == pauses


@pytest.mark.parametrize(("failures", "top_s"), [(1, 2.0), (3, 8.0), (9, 30.0), (10**9, 30.0)])
def test_jittered_backoff_is_spread_over_the_whole_range(failures: int, top_s: float) -> None:
    pauses = [jittered_backoff_s(failures, first_s=1.0, longest_s=30.0) for _ in range(1_000)]

    assert min(pauses) >= 1.0
    assert max(pauses) <= top_s
    assert max(pauses) - min(pauses) > 0.8 * (top_s - 1.0)


def test_jittered_backoff_is_never_shorter_than_the_first_pause() -> None:
    assert jittered_backoff_s(5, first_s=1.0, longest_s=0.5) == 1.0
