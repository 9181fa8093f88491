"""How large a sample has to be, by fractions; and that each chunk is as likely as any other."""

import math
from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.sampling import (
    drawn,
    miss_probability,
    sample_size,
    split,
    unlimited_count,
)


def missed(chunk_count: int, bad_count: int, drawn_count: int) -> Fraction:
    """Return the probability exactly, by counting the samples."""
    ways = math.comb(chunk_count - bad_count, drawn_count)
    return Fraction(ways, math.comb(chunk_count, drawn_count))


@given(st.integers(1, 400), st.data())
def test_the_probability_is_the_exact_one(chunk_count: int, data: st.DataObject) -> None:
    """The sample and the number of bad chunks are arbitrary."""
    bad_count = data.draw(st.integers(1, chunk_count))
    drawn_count = data.draw(st.integers(1, chunk_count))

    found = miss_probability(chunk_count, bad_count=bad_count, drawn_count=drawn_count)

    assert found == pytest.approx(float(missed(chunk_count, bad_count, drawn_count)), abs=1e-12)


@given(
    st.integers(1, 300),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
    st.sampled_from([1e-6, 0.001, 0.01, 0.05, 0.3, 1.0]),
)
def test_sample_size_is_the_smallest_sufficient(
    chunk_count: int, confidence: float, fraction: float
) -> None:
    """One chunk fewer would not be enough, and it never exceeds the size for an endless lot."""
    size = sample_size(chunk_count, confidence=confidence, fraction=fraction)
    allowed = 1 - Fraction(str(confidence))
    bad_count = max(1, math.ceil(Fraction(str(fraction)) * chunk_count))

    assert bad_count == size.bad_count
    assert missed(chunk_count, bad_count, size.drawn_count) <= allowed
    if size.drawn_count > 1:
        assert missed(chunk_count, bad_count, size.drawn_count - 1) > allowed
    assert size.drawn_count <= size.unlimited_count


@pytest.mark.parametrize(
    ("confidence", "fraction", "expected"),
    [(0.95, 1e-6, 2_995_731), (0.95, 0.01, 299), (0.99, 0.001, 4_603), (0.95, 1.0, 1)],
)
def test_sample_size_of_an_endless_lot_matches_published_tables(
    confidence: float, fraction: float, expected: int
) -> None:
    """The values are those of tables for acceptance sampling."""
    assert expected == unlimited_count(confidence, fraction)


def test_sample_size_of_a_very_large_lot_approaches_the_endless_one() -> None:
    """The size is computed quickly."""
    size = sample_size(10**9, confidence=0.95, fraction=1e-6)

    assert 0.998 < size.drawn_count / size.unlimited_count <= 1
    assert 0.95 <= size.power < 0.9501


def test_search_for_one_bad_chunk_of_few_needs_nearly_all() -> None:
    """A fraction below one chunk means one bad chunk."""
    assert 95 == sample_size(100, confidence=0.95, fraction=1e-6).drawn_count


def test_chunks_are_drawn_with_equal_probability() -> None:
    """Over many seeds each is drawn about as often, and one seed always draws the same."""
    size = sample_size(50, confidence=0.5, fraction=0.1)
    counts = Counter(
        number
        for seed in range(2_000)
        for number in drawn(50, drawn_count=size.drawn_count, seed=seed)
    )
    expected = 2_000 * size.drawn_count / 50
    deviation = math.sqrt(expected * (1 - size.drawn_count / 50))

    assert set(counts) == set(range(50))
    assert all(abs(count - expected) < 5 * deviation for count in counts.values())
    assert (
        drawn(50, drawn_count=size.drawn_count, seed=7)
        == drawn(50, drawn_count=size.drawn_count, seed=7)
        != drawn(50, drawn_count=size.drawn_count, seed=8)
    )
    assert len(set(drawn(50, drawn_count=size.drawn_count, seed=7))) == size.drawn_count


@pytest.mark.parametrize(("confidence", "fraction"), [(1.0, 0.1), (0.0, 0.1), (0.9, 0.0), (0.9, 2)])
def test_invalid_sample_parameters_are_refused(confidence: float, fraction: float) -> None:
    """A confidence of 1 is not possible."""
    with pytest.raises(ValueError, match="is not between"):
        sample_size(10, confidence=confidence, fraction=fraction)


def test_pairs_of_chunks_are_drawn_with_equal_probability() -> None:
    """A draw whose chunks depend on each other would miss damage that lies together."""
    rounds, share = 4_000, 4 * 3 / (10 * 9)
    pairs: Counter[tuple[int, int]] = Counter()
    for seed in range(rounds):
        pairs.update(combinations(drawn(10, drawn_count=4, seed=seed), 2))
    deviation = math.sqrt(rounds * share * (1 - share))

    assert 45 == len(pairs)
    assert all(abs(count - rounds * share) < 5 * deviation for count in pairs.values())


def test_few_of_very_many_chunks_are_drawn() -> None:
    """More than a distribution of numpy takes (10^9), without a list of them."""
    assert 3 == len(set(drawn(2**62, drawn_count=3, seed=1)))


@pytest.mark.parametrize("wrong", [(3, 4), (3, -1)])
def test_no_more_than_there_is_can_be_drawn(wrong: tuple[int, int]) -> None:
    """A sample larger than the population or below zero is refused."""
    with pytest.raises(ValueError, match="Sample larger"):
        drawn(wrong[0], drawn_count=wrong[1], seed=1)


def test_numbers_are_split_where_they_fall() -> None:
    """Among portions that lie end to end, also empty ones."""
    assert [2, 0, 1, 0] == split([0, 2, 3], [3, 0, 4, 2])
    assert [0, 0] == split([], [3, 4])
