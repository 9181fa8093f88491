"""Counts, for each volume, the votes that it could lose and the votes that it lost.

    unit (a volume of a node) ─► datanode ─► rack
                                 └──► version

A volume loses a vote if the majority of a container's replicas has the same root (the checksum of
all data), but the replica on the volume has another. The columns have one value per unit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from health.segmented_rows import Bools, Ints

Floats = NDArray[np.float64]

LEVELS: Final = ("volume", "datanode", "rack", "version")
"""The levels at which the cause of wrong replicas may be, the smallest first."""

PARTS_OF: Final = {"datanode": "volume", "rack": "datanode", "version": "datanode"}
"""For each level that has parts, the level of its parts."""


def summed_by(places: Ints, values: Floats | Ints | Bools, count: int) -> Floats:
    """Return, for each number below `count`, the sum of the `values` at the positions where
    `places` has this number."""
    return np.bincount(places, values, count).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Level:
    """The members of one level, for example all racks, and the member that each unit (volume)
    belongs to."""

    names: tuple[str, ...]
    of_unit: Ints
    is_candidate: Bools
    """Per member: False if a member of another level has the same units. Only that other member is
    then reported."""

    @property
    def count(self) -> int:
        """Number of members."""
        return len(self.names)

    def total(self, values: Floats | Ints) -> Floats:
        """Return, for each member, the sum of `values` over its units (volumes)."""
        return summed_by(self.of_unit, values, self.count)


@dataclass(frozen=True, slots=True)
class Duels:
    """Comparisons in which all other replicas of the container had one other software version, as
    columns.

    A row has the numbers of one unit (a volume of a node) against one other version.
    """

    unit: Ints
    against: tuple[str, ...]
    exposed: Ints
    lost: Ints


@dataclass(frozen=True, slots=True)
class Units:
    """The volumes whose replicas could lose: the number of comparisons, the number of losses, and
    the member of each level that a volume belongs to."""

    exposed: Floats
    lost: Floats
    levels: dict[str, Level]
    labels: dict[tuple[str, str], tuple[str, str]]
    """The (level, name) under which a member is reported. Only members with the same units as a
    member of another level have an entry."""
    duels: Duels

    @classmethod
    def of(cls, votes: Iterable[dict[str, Any]], nodes: Iterable[dict[str, Any]]) -> "Units":
        """Return the units for the rows of the tables `votes/` and `nodes/`."""
        rows = [row for row in votes if row["exposed"]]
        about = {node["datanode_id"]: node for node in nodes}
        keys = sorted({(row["datanode_id"], row["volume_id"]) for row in rows})
        place = {key: i for i, key in enumerate(keys)}
        unit = np.array([place[r["datanode_id"], r["volume_id"]] for r in rows], dtype=np.int64)
        exposed, lost = (np.array([row[n] for row in rows], float) for n in ("exposed", "lost"))
        own = [about[datanode_id] for datanode_id, _ in keys]
        columns = {
            "volume": [f"{datanode_id} {volume_id}" for datanode_id, volume_id in keys],
            "datanode": [datanode_id for datanode_id, _ in keys],
            "rack": [node["rack"] for node in own],
            "version": [node["version"] for node in own],
        }
        levels, labels = _levels(columns)
        duel = np.flatnonzero(np.array([bool(row["against"]) for row in rows], dtype=np.bool_))
        return cls(
            summed_by(unit, exposed, len(keys)),
            summed_by(unit, lost, len(keys)),
            levels,
            labels,
            Duels(
                unit[duel],
                tuple(rows[i]["against"] for i in duel.tolist()),
                exposed[duel].astype(np.int64),
                lost[duel].astype(np.int64),
            ),
        )

    def without(self, duels: Bools) -> "Units":
        """Return the units without the losses and comparisons of some rows of the attribute
        `duels`: those for which the argument `duels` is True."""
        own = self.duels
        exposed, lost = (
            summed_by(own.unit[duels], column[duels], len(self.exposed))
            for column in (own.exposed, own.lost)
        )
        return Units(self.exposed - exposed, self.lost - lost, self.levels, self.labels, own)


def _levels(
    columns: dict[str, list[str]],
) -> tuple[dict[str, Level], dict[tuple[str, str], tuple[str, str]]]:
    """Return the levels, and the names under which members are reported (`Units.labels`).

    If a node has only one volume, the volume is reported as the node. If a rack or version has only
    one node, it is reported as the node. A rack and a version with the same nodes are reported as
    "rack or version".
    """
    names, codes = {}, {}
    for level, words in columns.items():
        found, of_unit = np.unique(np.array(words, dtype=object), return_inverse=True)
        names[level], codes[level] = tuple(found.tolist()), of_unit.astype(np.int64)
    sets = {
        level: [tuple(own) for own in _members(codes[level], len(names[level]))] for level in LEVELS
    }
    nodes = set(sets["datanode"])
    racks = {own: names["rack"][i] for i, own in enumerate(sets["rack"]) if own not in nodes}
    labels = {
        ("version", name): ("rack or version", f"{racks[own]} or {name}")
        for name, own in zip(names["version"], sets["version"], strict=True)
        if own in racks
    }
    versions = set(sets["version"])
    hidden: dict[str, set[tuple[int, ...]]] = {
        "volume": nodes,
        "datanode": set(),
        "rack": nodes | versions,
        "version": nodes,
    }
    levels = {
        level: Level(
            names[level],
            codes[level],
            np.array([own not in hidden[level] for own in sets[level]], dtype=np.bool_),
        )
        for level in LEVELS
    }
    return levels, labels


def _members(codes: Ints, count: int) -> Sequence[list[int]]:
    """Return `count` lists. List i has the positions at which `codes` is i, the units of member
    i."""
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=count))
    return [own.tolist() for own in np.split(order, ends[:-1])] if count else []
