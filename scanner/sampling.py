"""How many chunks a sample needs, and what it says, by the hypergeometric distribution. Pure.

Of N chunks n are drawn without replacement. If K of them are bad, none of those is drawn with the
probability C(N-K, n) / C(N, n), which is at most (1 - K/N)^n: so n = ln(1-c) / ln(1-f) chunks are
enough for any N, and of few chunks fewer are.

A sample in which nothing is bad bounds the share of bad chunks, with a confidence. It verifies
nothing: of the chunks that were not drawn nobody knows anything.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

FRACTION_MIN: Final = 1e-12
DRAWN_MAX: Final = 1_000_000  # of one datanode: 100 MB while they are drawn, days of reading
ROUNDING: Final = 1e-9  # of a count that should be whole, and of sums of logarithms


@dataclass(frozen=True, slots=True)
class SampleSize:
    """What a sample of `drawn_count` of `chunk_count` chunks would show: if `bad_count` or more of
    them are bad, it has one of those with the probability `power`. `endless_count` would be drawn
    from endlessly many."""

    chunk_count: int
    bad_count: int
    drawn_count: int
    power: float
    endless_count: int


def miss_probability(chunk_count: int, *, bad_count: int, drawn_count: int) -> float:
    """Return with which probability none of the bad chunks is drawn: C(N-K, n) / C(N, n).

    As a product of min(K, n) factors; the two are the same by symmetry.
    """
    if drawn_count > chunk_count - bad_count:
        return 0.0
    few, many = sorted((bad_count, drawn_count))
    return math.exp(math.fsum(math.log1p(-many / (chunk_count - step)) for step in range(few)))


def endless_count(confidence: float, fraction: float) -> int:
    """Return how many chunks of endlessly many have a bad one with this confidence, if this
    fraction or more is bad: ln(1-c) / ln(1-f), rounded up."""
    if fraction >= 1:
        return 1
    return math.ceil(math.log1p(-confidence) / math.log1p(-fraction) - ROUNDING)


def sample_size(chunk_count: int, *, confidence: float, fraction: float) -> SampleSize:
    """Return the smallest sample of `chunk_count` chunks that has a bad one with this confidence,
    if the fraction or more of them is bad. Both are in (0, 1]; a confidence of 1 is not.

    Raises ValueError.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence:g} is not between 0 and 1")
    if not FRACTION_MIN <= fraction <= 1:
        raise ValueError(f"a fraction of {fraction:g} is not between {FRACTION_MIN:g} and 1")
    enough = endless_count(confidence, fraction)
    if not chunk_count:
        return SampleSize(0, 0, 0, 0.0, enough)
    bad_count = max(1, math.ceil(fraction * chunk_count - ROUNDING))
    low, high = 1, min(chunk_count, enough)
    while low < high:
        middle = (low + high) // 2
        is_enough = (
            miss_probability(chunk_count, bad_count=bad_count, drawn_count=middle)
            <= 1 - confidence + ROUNDING
        )
        low, high = (low, middle) if is_enough else (middle + 1, high)
    power = 1 - miss_probability(chunk_count, bad_count=bad_count, drawn_count=low)
    return SampleSize(chunk_count, bad_count, low, power, enough)


def drawn(chunk_count: int, *, drawn_count: int, seed: int) -> list[int]:
    """Return which chunks to read, by ascending number from 0: each sample of this size is as
    likely as any other, and the seed makes it again. Raise ValueError: there are not so many."""
    chance = random.Random(seed)  # noqa: S311 - to be repeated, and no secret
    return sorted(chance.sample(range(chunk_count), drawn_count))


def split(numbers: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Return how many of the numbers fall into each of some portions that lie end to end."""
    ends = np.fromiter(accumulate(counts), np.int64, len(counts))
    hit = np.searchsorted(ends, np.asarray(numbers, np.int64), side="right")
    found: list[int] = np.bincount(hit, minlength=len(counts)).tolist()
    return found
