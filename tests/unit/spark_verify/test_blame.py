"""Who is to blame: the statistic alone, without Spark."""

import math

import pytest

from spark_verify.report.blame import Tally, chance_text, suspects, tail_log10


def exact_tail(k: int, n: int, p: float) -> float:
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


class TestTail:
    """The upper tail of a binomial."""

    @pytest.mark.parametrize(("k", "n", "p"), [(3, 10, 0.1), (10, 10, 0.5), (5, 1000, 0.001)])
    def test_it_is_the_sum_of_its_terms(self, k: int, n: int, p: float) -> None:
        """
        Equal to the definition where that can be summed.
        """
        assert tail_log10(k, n, p) == pytest.approx(math.log10(exact_tail(k, n, p)), abs=1e-9)

    def test_what_is_expected_needs_no_explanation(self) -> None:
        """
        At or below the mean the chance is called one.
        """
        assert tail_log10(5, 100, 0.05) == 0
        assert tail_log10(0, 100, 0.05) == 0

    def test_it_neither_underflows_nor_overflows(self) -> None:
        """
        A million losses of ten million at a rate of one in a million.
        """
        assert -1e7 < tail_log10(1_000_000, 10_000_000, 1e-6) < -1e6


class TestSuspects:
    """Ranking."""

    def test_a_bad_node_among_many_is_named_first(self) -> None:
        """
        Twenty losses of a thousand where all others have one.
        """
        tallies = [Tally("datanode", f"dn{i}", 1, 1000) for i in range(50)]
        tallies[17] = Tally("datanode", "dn17", 20, 1000)

        found = suspects(tallies)

        assert [suspect.value for suspect in found] == ["dn17"]
        assert found[0].times_expected > 10

    def test_evenly_spread_losses_blame_nobody(self) -> None:
        """
        Everybody has one, one has two: that is what accident looks like.
        """
        tallies = [Tally("datanode", f"dn{i}", 1, 1000) for i in range(50)]
        tallies[3] = Tally("datanode", "dn3", 2, 1000)

        assert suspects(tallies) == []

    def test_with_one_value_only_there_is_nobody_to_compare_with(self) -> None:
        """
        All nodes run the same version: the version is never the suspect.
        """
        assert suspects([Tally("version", "1.0", 500, 1000)]) == []

    def test_many_candidates_raise_the_bar(self) -> None:
        """
        What stands out among three does not among three thousand.
        """
        few = [Tally("datanode", f"dn{i}", 0, 100) for i in range(3)]
        many = [Tally("datanode", f"dn{i}", int(i % 50 == 0), 100) for i in range(3000)]
        loser = Tally("datanode", "x", 3, 100)

        assert [s.value for s in suspects([*few, loser])] == []
        assert suspects([*many, loser]) == []
        assert [s.value for s in suspects([*many, Tally("datanode", "x", 9, 100)])] == ["x"]


def test_chances_are_words_a_person_reads() -> None:
    """
    Small ones as powers of ten.
    """
    assert [chance_text(x) for x in (-3.0, -40.2)] == ["1 in 1,000", "1 in 10^40"]
