"""Finds the volumes, nodes, racks or software versions whose replicas are wrong too often.

A replica loses if the majority of its container's replicas have the same root (the checksum of all
data), but the replica has another root. Only replicas that could have lost are counted (rows of
`votes/`). A volume, node, rack or version that loses more often than chance explains is a suspect.
The result is no proof; it shows an operator where to search.

First, the module finds pairs of software versions that disagree, and removes the losses that such a
pair explains. Then it selects the suspects, one at a time, so that the losses of a bad volume do
not count against the volume's node. Finally, it checks each suspect again, under the assumption
that all other suspects are bad.

The expected losses of a member are computed from the other members of the smallest suspect that
contains the member. For example, if a node is a suspect, its volumes are compared only with each
other. Members with too many losses are excluded from this comparison, whether they are suspects or
not.

Healthy volumes have different rates of loss. Therefore, the model is a Poisson distribution of
losses whose rate is drawn from a gamma distribution. The probability of chance is Chernoff's bound
on the tail, which is never too small. A group (a node with its volumes, or a rack with its nodes)
is a suspect only if the half of its parts with the lowest rates of loss also loses too often.
Otherwise, only its parts can be suspects.

Two versions may compute different roots of the same data. Then a replica of one version loses if
all other replicas have the other version, but not among replicas of its own version. The majority
may be wrong in this case. These losses are reported as "one of these two versions" and are not
counted for anything else.
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
"""A volume, node, rack or version is a suspect only if log10 of the probability that its losses are
chance is at most this. The probability is corrected for the number of candidates."""

TIMES_MIN: Final = 3.0
"""A volume, node, rack or version is a suspect only if its replicas differ from the majority at
least this many times as often as expected."""

LOST_MIN: Final = 5
"""A volume, node, rack or version is a suspect only if its replicas differ from the majority at
least this often."""

SPREADS: Final = {"volume": 0.1, "datanode": 0.05, "rack": 0.02, "version": 0.02}
"""Minimum spread of the loss rates of each level. The spread is the square of the coefficient of
variation."""

SPREAD_MEMBERS_MIN: Final = 8
"""Minimum number of members of a level to measure its spread."""

EXPECTED_MIN: Final = 5.0
"""Minimum number of expected losses for a statistical test. With fewer expected losses, a small
number of actual losses proves nothing."""

BETTER_HALF_MIN: Final = 0.25
"""A group is a suspect only if the half of its parts with the lowest rates of loss has at least
this fraction of the losses that its size predicts."""

STANDS_OUT_LOG10: Final = -2.5
"""If log10 of the probability that the losses of a volume, node or rack are chance is at most this,
it is excluded when the expected losses of others are computed."""

SHOWN_MAX: Final = 40

BOTH: Final = "versions"
"""The attribute of a suspect that is a pair of versions, of which one is wrong."""

NOT_COMPARED: Final = 0.0
"""log10 of the probability of chance, for a member that did not lose more often than expected."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A volume, datanode, rack or version whose replicas differ from the majority more often than
    chance explains. A lower `log10_chance` means more certainty."""

    attribute: str
    value: str
    lost: int
    exposed: int
    """Number of comparisons in which a replica of the suspect could have differed from the
    majority."""
    times_expected: float
    log10_chance: float
    """log10 of an upper bound on the probability that the losses are chance."""


@dataclass(frozen=True, slots=True)
class _Group:
    """A member of a level, for example one datanode of the level "datanode". `member` is its index
    in `Level.names`."""

    level: str
    member: int


@dataclass(frozen=True, slots=True)
class _Evidence:
    """For each member of a level, how often its replicas differ from the majority (`lost`), and how
    often this is expected."""

    lost: Floats
    exposed: Floats
    expected: Floats
    log10_chance: Floats
    """log10 of the probability that a single member has as many losses by chance. The method
    `of_all` corrects it for the number of members."""

    def of_all(self) -> Floats:
        """Return, for each member, log10 of the probability that at least one member of the level
        differs from the majority as often by chance."""
        return self.log10_chance + log10(max(1, int((self.exposed > 0).sum())))

    def is_sure(self) -> Bools:
        """Return, for each member, True if its replicas differ from the majority often enough that
        it is a suspect."""
        is_much: Bools = (self.lost >= LOST_MIN) & (self.lost >= TIMES_MIN * self.expected)
        return is_much & (self.of_all() <= SURE_LOG10)


def suspects(votes: Iterable[dict[str, Any]], nodes: Iterable[dict[str, Any]]) -> list[Suspect]:
    """Return at most SHOWN_MAX suspects, the most certain first.

    `votes` are the rows of the table `votes/`, which has the results of comparing replicas of each
    volume with the majority. `nodes` are the rows of the table `nodes/`.
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
    """Return the most certain suspect that is not in `named`; None if there is none."""
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
    """Return the suspects that still have too many losses, compared with the members that are not
    suspects.

    The check is needed, because the first suspects were compared with members that became suspects
    later.
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
    """For a given list of suspects, computes how often the replicas of each member differ from the
    majority, and how often this is expected."""

    def __init__(self, units: Units, named: Sequence[_Group]) -> None:
        self._units = units
        self._named = tuple(named)
        self._cell, self._cells = _cells(units, named)
        self._is_measure = np.ones(len(units.exposed), dtype=np.bool_)
        self._find_measures()

    def evidence(self, name: str) -> _Evidence:
        """Return the actual and the expected losses of each member of the level `name`.

        A volume of a member counts only if the smallest suspect that contains the volume also
        contains the complete member. The losses of the member's other volumes are explained by the
        suspects that contain these volumes.
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
        """Return a boolean array of shape (members, cells) for the level `name`.

        The members of a level are, for example, all datanodes. A suspect is a group of volumes
        that may have a common fault. The volumes with the same smallest suspect are one cell, and
        the value is True if this suspect contains all volumes of the member. The volumes without a
        suspect are one more cell, whose values are all True.
        """
        level = self._units.levels[name]
        found = np.ones((level.count, self._cells), dtype=np.bool_)
        for number, group in enumerate(self._named, 1):
            outside = self._units.levels[group.level].of_unit != group.member
            found[:, number] = level.total(outside * 1) == 0
        return found

    def is_bad_throughout(self, group: _Group) -> bool:
        """Return True if a group has no parts, or if the half of its parts with the lowest rates of
        loss also loses too often."""
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
        """Choose the volumes from which the expected losses are computed.

        Volumes with too many losses are excluded. This is repeated until no more are found, because
        one such volume can hide another. In each cell (volumes whose smallest suspect is the same),
        at least half of the replicas that could have lost remain.
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
        """Return the spread of each member's rate of loss: the square of the coefficient of
        variation."""
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
    """Return the cell number of each volume, and the number of cells. A cell is the set of volumes
    whose smallest suspect is the same. Cell 0 has the volumes that are in no suspect."""
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
    """Return the spread (square of the coefficient of variation) of the members' rates of loss.

    Only members with at least EXPECTED_MIN expected losses are used, and only the half with the
    lowest rates, because suspects are in the other half. Return 0 if there are too few such
    members.
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
    """Return the pairs of versions of which one is probably wrong. Also return, for each row of
    `units.duels`, True if such a pair explains the losses of the row.

    A row of `duels` counts replicas whose peers all had one other version. A pair is returned if
    replicas of one version lose when all peers have the other version, but not among peers of their
    own version. Random damage would cause losses in both cases. The losses do not show which of the
    two versions is wrong.
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
    """Compare the losses of a version in the rows `mask` of `units.duels` with its other losses.

    A row of `duels` counts replicas whose peers all had one other version. Return the ratio of
    losses to expected losses, and log10 of the probability of chance. Return (0, 0) if the version
    lost fewer than LOST_MIN times in these rows, or only on some of its nodes.
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
    """Return True if the losses are spread over the parts of a group, instead of being in a few of
    them.

    The half of the parts with the lowest rates of loss must have at least BETTER_HALF_MIN of the
    losses that its size predicts. Return True also if there are too few parts or losses to decide.
    """
    there = np.flatnonzero(exposed)
    order = there[np.argsort(lost[there] / exposed[there], kind="stable")]
    half = np.cumsum(exposed[order]) <= exposed.sum() / 2
    better = order[: max(1, int(half.sum()))]
    share = lost.sum() * exposed[better].sum() / max(exposed.sum(), 1)
    if len(there) < 2 or share < EXPECTED_MIN:
        return True
    return bool(lost[better].sum() >= BETTER_HALF_MIN * share)


def tail_log10(lost: Floats, expected: Floats, shape: Floats) -> Floats:
    """Return an upper bound on log10 of the probability of at least `lost` events if `expected`
    events are expected.

    The rate of events is drawn from a gamma distribution with this `shape` (Chernoff's bound).
    """
    more = np.maximum(lost, expected)
    nats = (more + shape) * np.log((more + shape) / (expected + shape))
    nats -= more * np.log(np.maximum(more, 1e-300) / expected)
    return np.where(lost <= expected, NOT_COMPARED, nats / log(10))


def chance_text(log10_chance: float) -> str:
    """Return a probability as text like "1 in 1,000", given log10 of the probability."""
    if log10_chance < -6:
        return f"1 in 10^{-log10_chance:.0f}"
    return f"1 in {1 / exp(log10_chance * log(10)):,.0f}"
