"""How large a sample has to be, by fractions; and that each chunk is as likely as any other."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.sampling import drawn, endless_count, miss_probability, sample_size


def missed(chunk_count: int, bad_count: int, drawn_count: int) -> Fraction:
    """Return the probability exactly, by counting the samples."""
    ways = math.comb(chunk_count - bad_count, drawn_count)
    return Fraction(ways, math.comb(chunk_count, drawn_count))


@given(st.integers(1, 400), st.data())
def test_the_probability_is_the_exact_one(chunk_count: int, data: st.DataObject) -> None:
    """Of any sample and any number of bad chunks."""
    bad_count = data.draw(st.integers(1, chunk_count))
    drawn_count = data.draw(st.integers(1, chunk_count))

    found = miss_probability(chunk_count, bad_count=bad_count, drawn_count=drawn_count)

    assert found == pytest.approx(float(missed(chunk_count, bad_count, drawn_count)), abs=1e-12)


@given(
    st.integers(1, 300),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
    st.sampled_from([1e-6, 0.001, 0.01, 0.05, 0.3, 1.0]),
)
def test_it_is_the_smallest_that_is_enough(
    chunk_count: int, confidence: float, fraction: float
) -> None:
    """One chunk less would not do; and never more than of endlessly many."""
    size = sample_size(chunk_count, confidence=confidence, fraction=fraction)
    allowed = 1 - Fraction(str(confidence))
    bad_count = max(1, math.ceil(Fraction(str(fraction)) * chunk_count))

    assert bad_count == size.bad_count
    assert missed(chunk_count, bad_count, size.drawn_count) <= allowed
    if size.drawn_count > 1:
        assert missed(chunk_count, bad_count, size.drawn_count - 1) > allowed
    assert size.drawn_count <= size.endless_count


@pytest.mark.parametrize(
    ("confidence", "fraction", "expected"),
    [(0.95, 1e-6, 2_995_731), (0.95, 0.01, 299), (0.99, 0.001, 4_603), (0.95, 1.0, 1)],
)
def test_of_endlessly_many(confidence: float, fraction: float, expected: int) -> None:
    """As tables of acceptance sampling have them."""
    assert expected == endless_count(confidence, fraction)


def test_of_very_many_it_comes_near_that() -> None:
    """And is found quickly."""
    size = sample_size(10**9, confidence=0.95, fraction=1e-6)

    assert 0.998 < size.drawn_count / size.endless_count <= 1
    assert 0.95 <= size.power < 0.9501


def test_one_bad_chunk_of_few_wants_nearly_all() -> None:
    """Less than one bad chunk cannot be: a single one is looked for."""
    assert 95 == sample_size(100, confidence=0.95, fraction=1e-6).drawn_count


def test_each_chunk_is_as_likely_as_any_other() -> None:
    """Over many seeds, each is drawn about as often; by one seed always the same."""
    size = sample_size(50, confidence=0.5, fraction=0.1)
    counts = Counter(number for seed in range(2_000) for number in drawn(size, seed))
    expected = 2_000 * size.drawn_count / 50
    deviation = math.sqrt(expected * (1 - size.drawn_count / 50))

    assert set(counts) == set(range(50))
    assert all(abs(count - expected) < 5 * deviation for count in counts.values())
    assert drawn(size, 7) == drawn(size, 7) != drawn(size, 8)
    assert len(set(drawn(size, 7))) == size.drawn_count


@pytest.mark.parametrize(("confidence", "fraction"), [(1.0, 0.1), (0.0, 0.1), (0.9, 0.0), (0.9, 2)])
def test_what_makes_no_sense_is_refused(confidence: float, fraction: float) -> None:
    """Certainty is no confidence."""
    with pytest.raises(ValueError, match="is not between"):
        sample_size(10, confidence=confidence, fraction=fraction)
