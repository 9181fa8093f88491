"""Finds volumes, nodes, racks or software versions that lost more votes than chance explains. A
vote is lost if the majority of a container's replicas has another root.

The steps: find pairs of versions that disagree and remove their votes; name the suspects one after
the other; check each suspect again, given all others.

Only votes that a replica could have lost are counted (rows of `votes/`). Suspects are named one
after the other, so that the losses of a bad volume do not count against its node. The expected
losses of a suspect are computed from the other members of the innermost named group that contains
the suspect. For example, once a node is named, its volumes are compared only with each other.
Members with too many losses are excluded from this comparison, whether they are named or not.

Healthy volumes have different rates of loss. Therefore the model is a Poisson distribution of
losses whose rate is drawn from a gamma distribution. The probability of chance is Chernoff's bound
on the tail, which is never too small. A group (a node with its volumes, a rack with its nodes) is
named only if the better half of its parts also loses too many votes; otherwise its parts are
suspects.

If two versions disagree systematically, a replica of one version loses if all others have the other
version, and does not lose among replicas of its own version. The majority wins such votes, but it
may be wrong. These losses are reported separately as "one of these two versions" and are not
counted elsewhere. The result is no proof; it shows an operator where to search.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, log, log10
from typing import Any, Final

import numpy as np

from health.segmented_rows import Bools, Ints
from health.vote_columns import LEVELS, PARTS_OF, Floats, Units, summed_by

SURE_LOG10: Final = -4.0
"""A suspect is named only if log10 of the probability of chance, corrected for the number of
members, is at most this."""

TIMES_MIN: Final = 3.0
"""A suspect is named only if it lost at least this multiple of the expected number."""

LOST_MIN: Final = 5
"""A suspect is named only if it lost at least this many votes."""

SPREADS: Final = {"volume": 0.1, "datanode": 0.05, "rack": 0.02, "version": 0.02}
"""For each level, the minimum spread of loss rates: the square of their coefficient of
variation."""

SPREAD_MEMBERS_MIN: Final = 8
"""Minimum number of members of a level to measure its spread."""

EXPECTED_MIN: Final = 5.0
"""Minimum number of expected losses; with fewer, a small number of losses proves nothing."""

BETTER_HALF_MIN: Final = 0.25
"""The better half of a suspect's parts must lose at least this fraction of its proportional
share."""

STANDS_OUT_LOG10: Final = -2.5
"""A member whose log10 of chance is at most this is left out when expected losses are computed."""

SHOWN_MAX: Final = 40

BOTH: Final = "versions"
"""The attribute of a suspect that is a pair of versions; one of the two is to blame."""

NOT_COMPARED: Final = 0.0
"""log10 of the probability of chance of a member without excess losses."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A volume, datanode, rack or version that lost more votes than chance explains. The lower its
    `log10_chance`, the more certain it is."""

    attribute: str
    value: str
    lost: int
    exposed: int
    """Number of votes that the member could have lost."""
    times_expected: float
    log10_chance: float
    """log10 of an upper bound on the probability of chance."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A member of a level, for example one datanode. `member` is its index in `Level.names`."""

    level: str
    member: int


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The losses of all members of a level, and their expected losses, with a value per member."""

    lost: Floats
    exposed: Floats
    expected: Floats
    log10_chance: Floats
    """log10 of the chance for each member alone; `of_all` corrects for the number of members."""

    def of_all(self) -> Floats:
        """Return, per member, log10 of the probability that at least one member of the level has
        as many excess losses by chance."""
        return self.log10_chance + log10(max(1, int((self.exposed > 0).sum())))

    def is_sure(self) -> Bools:
        """Return a mask of the members that lost enough votes to be named as suspects."""
        is_much: Bools = (self.lost >= LOST_MIN) & (self.lost >= TIMES_MIN * self.expected)
        return is_much & (self.of_all() <= SURE_LOG10)


def suspects(votes: Iterable[dict[str, Any]], nodes: Iterable[dict[str, Any]]) -> list[Suspect]:
    """Return the suspects, most certain first, at most SHOWN_MAX. `votes` are rows of the table
    `votes/`, and `nodes` are rows of the table `nodes/`.
    """
    units = Units.of(votes, nodes)
    pairs, is_explained = _disagreements(units)
    units = units.without(is_explained)
    named: list[_Group] = []
    while len(named) < SHOWN_MAX and (found := _worst(units, named)) is not None:
        named.append(found)
    named = _confirmed(units, named)
    told = [_suspect_from(units, group, _without(named, group)) for group in named]
    order = sorted([*pairs, *told], key=lambda s: (s.log10_chance, s.attribute, s.value))
    return order[:SHOWN_MAX]


def _worst(units: Units, named: Sequence[_Group]) -> _Group | None:
    """Return the next suspect, given those already named; None if there is none."""
    trial = _Trial(units, named)
    found: list[tuple[float, _Group]] = []
    for name in LEVELS:
        evidence = trial.evidence(name)
        level = units.levels[name]
        for member in np.flatnonzero(evidence.is_sure() & level.is_candidate).tolist():
            found.append((float(evidence.of_all()[member]), _Group(name, member)))
    for _, group in sorted(found, key=lambda pair: pair[0]):
        if group not in named and trial.is_bad_throughout(group):
            return group
    return None


def _confirmed(units: Units, named: Sequence[_Group]) -> list[_Group]:
    """Return the suspects that still have too many losses, given all other suspects. This check is
    needed because the first suspects were compared with members that were named later.
    """
    kept = list(named)
    while True:
        for group in reversed(kept):
            trial = _Trial(units, _without(kept, group))
            evidence = trial.evidence(group.level)
            if not evidence.is_sure()[group.member] or not trial.is_bad_throughout(group):
                kept.remove(group)
                break
        else:
            return kept


def _without(named: Iterable[_Group], group: _Group) -> list[_Group]:
    return [other for other in named if other != group]


def _suspect_from(units: Units, group: _Group, others: Sequence[_Group]) -> Suspect:
    evidence = _Trial(units, others).evidence(group.level)
    i = group.member
    name = units.levels[group.level].names[i]
    attribute, value = units.labels.get((group.level, name), (group.level, name))
    return Suspect(
        attribute,
        value,
        int(evidence.lost[i]),
        int(evidence.exposed[i]),
        round(float(evidence.lost[i] / evidence.expected[i]), 1),
        round(float(evidence.of_all()[i]), 1),
    )


class _Trial:
    """The evidence about all members of all levels, given the suspects that are already named."""

    def __init__(self, units: Units, named: Sequence[_Group]) -> None:
        self._units = units
        self._named = tuple(named)
        self._cell, self._cells = _cells(units, named)
        self._is_measure = np.ones(len(units.exposed), dtype=np.bool_)
        self._find_measures()

    def evidence(self, name: str) -> _Evidence:
        """Return the evidence about each member of a level. A unit (volume) of a member counts only
        if the unit's innermost named group contains the complete member. The losses of the member's
        other units are explained by their own groups.
        """
        units, level = self._units, self._units.levels[name]
        place = level.of_unit * self._cells + self._cell
        shape = (level.count, self._cells)
        exposed, lost, measure, lost_there = (
            summed_by(place, column, level.count * self._cells).reshape(shape)
            for column in (
                units.exposed,
                units.lost,
                units.exposed * self._is_measure,
                units.lost * self._is_measure,
            )
        )
        others = np.maximum(measure.sum(axis=0) - measure, 0)
        others_lost = np.maximum(lost_there.sum(axis=0) - lost_there, 0)
        is_compared = (others > 0) & (exposed > 0) & self._contains(name)
        expected = np.where(is_compared, exposed * (others_lost + 0.5) / (others + 1), 0)
        total = expected.sum(axis=1)
        own_lost = np.where(is_compared, lost, 0).sum(axis=1)
        own_exposed = np.where(is_compared, exposed, 0).sum(axis=1)
        safe = np.where(total > 0, total, 1)
        doubt = (expected**2 / (others_lost + 0.5)).sum(axis=1) / safe**2
        doubt += self._spread(name, own_lost, safe)
        chance = tail_log10(own_lost, safe, 1 / doubt)
        return _Evidence(own_lost, own_exposed, safe, np.where(total > 0, chance, NOT_COMPARED))

    def _contains(self, name: str) -> Bools:
        """Return a mask of shape (members, cells). A cell has the volumes whose innermost named
        group is the same. The mask is True if this group contains all volumes of the member. In
        the column of the volumes that are in no named group, it is True for all members."""
        level = self._units.levels[name]
        found = np.ones((level.count, self._cells), dtype=np.bool_)
        for number, group in enumerate(self._named, 1):
            outside = self._units.levels[group.level].of_unit != group.member
            found[:, number] = level.total(outside * 1) == 0
        return found

    def is_bad_throughout(self, group: _Group) -> bool:
        """Return True if the half of a group's parts with the lower rates of loss also loses too
        many votes, or if the group has no parts."""
        if group.level not in PARTS_OF:
            return True
        units = self._units
        level = units.levels[group.level]
        own = level.of_unit == group.member
        own &= self._contains(group.level)[group.member][self._cell]
        parts = units.levels[PARTS_OF[group.level]]
        lost = summed_by(parts.of_unit[own], units.lost[own], parts.count)
        exposed = summed_by(parts.of_unit[own], units.exposed[own], parts.count)
        return _is_throughout(lost, exposed)

    def _find_measures(self) -> None:
        """Choose the units (volumes) whose votes give the expected losses: exclude outliers until
        there are none, because one outlier can hide another. At least half of the votes of each
        cell (units with the same innermost named group) remain.
        """
        while True:
            out = np.zeros(len(self._is_measure), dtype=np.bool_)
            for name in LEVELS[:-1]:
                level, evidence = self._units.levels[name], self.evidence(name)
                out |= (evidence.log10_chance <= STANDS_OUT_LOG10)[level.of_unit]
            kept = self._is_measure & ~out
            whole, left = (
                summed_by(self._cell, self._units.exposed * mask, self._cells)
                for mask in (np.ones(len(kept)), kept)
            )
            kept = np.where((left >= whole / 2)[self._cell], kept, self._is_measure)
            if (kept == self._is_measure).all():
                return
            self._is_measure = kept

    def _spread(self, name: str, lost: Floats, expected: Floats) -> Floats:
        """Return the square of the coefficient of variation of each member's rate of loss."""
        level = self._units.levels[name]
        rate = (expected / np.maximum(level.total(self._units.exposed), 1))[level.of_unit]
        own = self._units.exposed * rate
        found = np.full(level.count, SPREADS[name])
        for finer in LEVELS[: LEVELS.index(name)]:
            if name == "version" and finer == "rack":
                continue  # a version spans many racks
            parts = self._units.levels[finer]
            squares = np.zeros(level.count)
            of_part = np.zeros(parts.count, dtype=np.int64)
            of_part[parts.of_unit] = level.of_unit
            np.add.at(squares, of_part, parts.total(own) ** 2)
            found += SPREADS[finer] * squares / expected**2
        contains = self._contains(name)
        for coarser in LEVELS[LEVELS.index(name) + 1 : -1]:  # affects all its members
            place = LEVELS.index(coarser)
            inner = [i for i, g in enumerate(self._named, 1) if LEVELS.index(g.level) <= place]
            found += SPREADS[coarser] * ~contains[:, inner].any(axis=1)
        widest: Floats = np.maximum(found, _measured_spread(lost, expected))
        return widest


def _cells(units: Units, named: Sequence[_Group]) -> tuple[Ints, int]:
    """Return the cell of each unit, and the number of cells. A cell is the set of units with the
    same innermost named group; the first cell has the units in no group.
    """
    cell = np.zeros(len(units.exposed), dtype=np.int64)
    size = np.full(len(cell), np.inf)
    for number, group in enumerate(named, 1):
        level = units.levels[group.level]
        own = level.of_unit == group.member
        weight = units.exposed[own].sum()
        inner = own & (weight < size)
        cell[inner], size[inner] = number, weight
    return cell, len(named) + 1


def _measured_spread(lost: Floats, expected: Floats) -> float:
    """Return the spread of rates, measured on the lower half of the members with enough expected
    losses, because suspects are in the upper half. Return 0 if there are too few such members.
    """
    is_told = expected >= EXPECTED_MIN
    if is_told.sum() < SPREAD_MEMBERS_MIN:
        return 0.0
    rates = lost[is_told] / expected[is_told]
    middle = float(np.median(rates))
    low = rates <= middle
    if middle <= 0:
        return 0.0
    squares = float(((rates[low] - middle) ** 2).mean())
    chance = float((middle / expected[is_told][low]).mean())
    return max(0.0, (squares - chance) / middle**2)


def _disagreements(units: Units) -> tuple[list[Suspect], Bools]:
    """Return the pairs of versions of which one is probably wrong. Also return a mask of the duels
    (votes against replicas that all have one other version) whose losses these pairs explain.

    A pair is named if replicas of one version lose when all others have the other version, but not
    among replicas of their own version. Random damage causes losses in both cases. It is unknown
    which of the two versions is wrong.
    """
    duels = units.duels
    versions = units.levels["version"]
    names = np.array([*versions.names, ""], dtype=object)
    own = names[versions.of_unit[duels.unit]] if len(duels.unit) else np.array([], dtype=object)
    against = np.array(duels.against, dtype=object)
    is_explained = np.zeros(len(duels.unit), dtype=np.bool_)
    found = []
    for one, other in combinations(versions.names, 2):
        sides = {one: (own == one) & (against == other), other: (own == other) & (against == one)}
        told = [_alone(units, mask, side) for side, mask in sides.items()]
        times, chance = min(told, key=lambda pair: pair[1])
        if chance <= SURE_LOG10 and times >= TIMES_MIN:
            both = sides[one] | sides[other]
            is_explained |= both
            numbers = int(duels.lost[both].sum()), int(duels.exposed[both].sum())
            value = f"{one} or {other}"
            found.append(Suspect(BOTH, value, *numbers, round(times, 1), round(chance, 1)))
    return found, is_explained


def _alone(units: Units, mask: Bools, version: str) -> tuple[float, float]:
    """Return how much more often a version loses its duels in `mask` than its other votes, as the
    ratio of losses to expected losses, and log10 of the probability of chance. Return (0, 0) if
    the version lost fewer than LOST_MIN of these duels, or lost them only on some of its nodes.
    """
    nothing = 0.0, NOT_COMPARED
    duels = units.duels
    lost, exposed = float(duels.lost[mask].sum()), float(duels.exposed[mask].sum())
    if lost < LOST_MIN:
        return nothing
    nodes = units.levels["datanode"]
    of_duel = nodes.of_unit[duels.unit[mask]]
    parts = [
        summed_by(of_duel, column[mask], nodes.count) for column in (duels.lost, duels.exposed)
    ]
    if np.count_nonzero(parts[1]) < 2 or not _is_throughout(*parts):
        return nothing
    alone = [summed_by(duels.unit, c, len(units.lost)) for c in (duels.lost, duels.exposed)]
    others_lost, others = units.lost - alone[0], units.exposed - alone[1]
    level = units.levels["version"]
    kin = level.of_unit == level.names.index(version)
    if others[kin].sum() * lost / exposed >= EXPECTED_MIN:  # expected losses in its own version
        others_lost, others = others_lost[kin], others[kin]
    rate = (others_lost.sum() + 0.5) / (others.sum() + 1)
    doubt = 1 / (others_lost.sum() + 0.5) + SPREADS["version"] + SPREADS["datanode"]
    bound = tail_log10(np.array([lost]), np.array([exposed * rate]), np.array([1 / doubt]))
    return lost / (exposed * rate), float(bound[0])


def _is_throughout(lost: Floats, exposed: Floats) -> bool:
    """Return True if the half of the parts with the lowest rates of loss still loses at least
    BETTER_HALF_MIN of its proportional share, or if there are too few parts or losses to decide."""
    there = np.flatnonzero(exposed)
    order = there[np.argsort(lost[there] / exposed[there], kind="stable")]
    half = np.cumsum(exposed[order]) <= exposed.sum() / 2
    better = order[: max(1, int(half.sum()))]
    share = lost.sum() * exposed[better].sum() / max(exposed.sum(), 1)
    if len(there) < 2 or share < EXPECTED_MIN:
        return True
    return bool(lost[better].sum() >= BETTER_HALF_MIN * share)


def tail_log10(lost: Floats, expected: Floats, shape: Floats) -> Floats:
    """Return an upper bound on log10 of the probability of at least this many losses, with the rate
    drawn from a gamma distribution of this shape (Chernoff's bound).
    """
    more = np.maximum(lost, expected)
    nats = (more + shape) * np.log((more + shape) / (expected + shape))
    nats -= more * np.log(np.maximum(more, 1e-300) / expected)
    return np.where(lost <= expected, NOT_COMPARED, nats / log(10))


def chance_text(log10_chance: float) -> str:
    """Return a probability, given by its log10, as text like "1 in 1,000"."""
    if log10_chance < -6:
        return f"1 in 10^{-log10_chance:.0f}"
    return f"1 in {1 / exp(log10_chance * log(10)):,.0f}"
