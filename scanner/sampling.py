"""Computes the sizes of samples, and the confidence in their result. No I/O.

A sample is n of N chunks, drawn without replacement (hypergeometric distribution). If K chunks are
bad, the probability that the sample has no bad chunk is C(N-K, n) / C(N, n), which is at most (1 -
K/N)^n. Therefore, n = ln(1-c) / ln(1-f) chunks are enough for any N (c is the confidence, f the
fraction of bad chunks), and fewer chunks if N is small.

A sample without bad chunks gives an upper bound of the fraction of bad chunks, with a confidence.
It proves nothing about a particular chunk that was not drawn.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np

FRACTION_MIN: Final = 1e-12
DRAWN_MAX: Final = 1_000_000  # per datanode: 100 MB of memory, and days of reading
ROUNDING: Final = 1e-9  # tolerance for rounding errors of counts and logarithms


@dataclass(frozen=True, slots=True)
class SampleSize:
    """The size of a sample: `drawn_count` of `chunk_count` chunks.

    If at least `bad_count` chunks are bad, the sample contains a bad chunk with the probability
    `power`. `unlimited_count` is the sample size for an infinite number of chunks.
    """

    chunk_count: int
    bad_count: int
    drawn_count: int
    power: float
    unlimited_count: int


def miss_probability(chunk_count: int, *, bad_count: int, drawn_count: int) -> float:
    """Return the probability that a sample has no bad chunk: C(N-K, n) / C(N, n).

    It is computed as a product of min(K, n) factors.
    """
    if drawn_count > chunk_count - bad_count:
        return 0.0
    few, many = sorted((bad_count, drawn_count))
    return math.exp(math.fsum(math.log1p(-many / (chunk_count - step)) for step in range(few)))


def unlimited_count(confidence: float, fraction: float) -> int:
    """Return the sample size for an infinite number of chunks: ln(1-c) / ln(1-f), rounded up.

    If at least this `fraction` of the chunks is bad, a sample of this size contains a bad chunk
    with this `confidence`.
    """
    if fraction >= 1:
        return 1
    return math.ceil(math.log1p(-confidence) / math.log1p(-fraction) - ROUNDING)


def sample_size(chunk_count: int, *, confidence: float, fraction: float) -> SampleSize:
    """Return the size of the smallest sample that contains a bad chunk with this `confidence`, if
    at least this `fraction` of the chunks is bad.

    Raise ValueError if the confidence is not in (0, 1) or the fraction not in (0, 1].
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence:g} is not between 0 and 1")
    if not FRACTION_MIN <= fraction <= 1:
        raise ValueError(f"a fraction of {fraction:g} is not between {FRACTION_MIN:g} and 1")
    enough = unlimited_count(confidence, fraction)
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
    """Return the zero-based indexes of the chunks to read, in ascending order.

    Every sample of this size has the same probability. The same `seed` returns the same sample.
    Raise ValueError if `drawn_count` exceeds `chunk_count`.
    """
    chance = random.Random(seed)  # noqa: S311 - to be repeated, and no secret
    return sorted(chance.sample(range(chunk_count), drawn_count))


def split(numbers: Sequence[int], counts: Sequence[int]) -> list[int]:
    """Return how many of the drawn chunk indexes (`numbers`) are in each group of chunks.

    The groups are consecutive. `counts` has the number of chunks of each group.
    """
    ends = np.fromiter(accumulate(counts), np.int64, len(counts))
    hit = np.searchsorted(ends, np.asarray(numbers, np.int64), side="right")
    found: list[int] = np.bincount(hit, minlength=len(counts)).tolist()
    return found
