"""Who is to blame: which node, volume, software version or rack the outvoted replicas share.

For each value of an attribute: of `n` replicas with a known root, `k` lost the vote. Everyone else
loses at rate p. The chance of k or more by accident is the upper tail of Binomial(n, p); times the
number of values tried (Bonferroni), since among a thousand nodes one is always the worst. The
smallest chance is the first suspect. Nothing here is proof: it says where to look.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, lgamma, log, log10
from typing import Final

SURE_LOG10: Final = -3.0
"""A suspect is named when accident is less likely than one in a thousand."""

SHOWN_MAX: Final = 20
TERM_MIN: Final = 1e-18


@dataclass(frozen=True, slots=True)
class Tally:
    """What one value of one attribute did: `lost` of `known` votes."""

    attribute: str
    value: str
    lost: int
    known: int


@dataclass(frozen=True, slots=True)
class Suspect:
    """A value whose losses are too many for accident; smaller `log10_chance` is worse."""

    attribute: str
    value: str
    lost: int
    known: int
    times_expected: float
    log10_chance: float


def suspects(tallies: Iterable[Tally]) -> list[Suspect]:
    """Return the values that stand out, the most certain first, at most SHOWN_MAX."""
    by_attribute: dict[str, list[Tally]] = {}
    for tally in tallies:
        by_attribute.setdefault(tally.attribute, []).append(tally)
    found = [suspect for group in by_attribute.values() for suspect in _rank(group)]
    return sorted(found, key=lambda s: (s.log10_chance, s.attribute, s.value))[:SHOWN_MAX]


def _rank(group: list[Tally]) -> list[Suspect]:
    lost, known = sum(t.lost for t in group), sum(t.known for t in group)
    found = []
    for tally in group:
        others = known - tally.known
        if not tally.lost or not others:
            continue  # with one value only there is nobody to compare with
        # Half a loss for the others: a rate of exactly zero would make any loss impossible.
        rate = min((lost - tally.lost + 0.5) / (others + 1), 1.0)
        chance = tail_log10(tally.lost, tally.known, rate) + log10(len(group))
        if chance <= SURE_LOG10:
            expected = tally.known * rate
            found.append(
                Suspect(
                    tally.attribute,
                    tally.value,
                    tally.lost,
                    tally.known,
                    round(tally.lost / expected, 1),
                    round(chance, 1),
                )
            )
    return found


def tail_log10(k: int, n: int, p: float) -> float:
    """Return log10 of the chance that Binomial(n, p) is k or more."""
    if k <= 0 or p >= 1:
        return 0.0
    if k <= n * p:
        return 0.0  # at or below what is expected: nothing to explain
    first = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(p)
    first += (n - k) * log(1 - p)
    total, term, i = 1.0, 1.0, k
    while i < n and term > TERM_MIN * total:  # terms fall from k on, since k is above the mean
        term *= (n - i) / (i + 1) * p / (1 - p)
        total += term
        i += 1
    return min(0.0, (first + log(total)) / log(10))


def chance_text(log10_chance: float) -> str:
    """Return a chance as a person reads it."""
    if log10_chance < -6:
        return f"1 in 10^{-log10_chance:.0f}"
    return f"1 in {1 / exp(log10_chance * log(10)):,.0f}"
