"""Votes as columns: the votes that each volume lost or could have lost, and its place in the
cluster.

unit (a volume of a node) ─► datanode ─► rack
                                    └──► version
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from health.segmented_rows import Bools, Ints

Floats = NDArray[np.float64]

LEVELS: Final = ("volume", "datanode", "rack", "version")
"""Levels of possible suspects, smallest first."""

PARTS_OF: Final = {"datanode": "volume", "rack": "datanode", "version": "datanode"}
"""For each level that has parts, the level of the parts."""


def summed_by(places: Ints, values: Floats | Ints | Bools, count: int) -> Floats:
    """Return the sum of the values for each number in `places`, below `count`."""
    return np.bincount(places, values, count).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Level:
    """The members of one level (for example all racks), and the member of each unit."""

    names: tuple[str, ...]
    of_unit: Ints
    is_candidate: Bools
    """Per member: False if another level has a member with the same units. Only that member is
    then reported as a suspect."""

    @property
    def count(self) -> int:
        """Number of members."""
        return len(self.names)

    def total(self, values: Floats | Ints) -> Floats:
        """Return, per member, the sum of `values` over its units."""
        return summed_by(self.of_unit, values, self.count)


@dataclass(frozen=True, slots=True)
class Duels:
    """Duels: votes of replicas whose peers all had one other software version, as columns. A row
    has the votes of one unit (a volume of a node) against one version."""

    unit: Ints
    against: tuple[str, ...]
    exposed: Ints
    lost: Ints


@dataclass(frozen=True, slots=True)
class Units:
    """The volumes that could lose votes: their votes, losses, and member at each level."""

    exposed: Floats
    lost: Floats
    levels: dict[str, Level]
    labels: dict[tuple[str, str], tuple[str, str]]
    """(level, name) as it is reported, for each member with the same units as a member of another
    level."""
    duels: Duels

    @classmethod
    def of(cls, votes: Iterable[dict[str, Any]], nodes: Iterable[dict[str, Any]]) -> "Units":
        """Return the units of rows of `votes/` and of `nodes/`."""
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
        """Return the units without the votes of the duels in a mask."""
        own = self.duels
        exposed, lost = (
            summed_by(own.unit[duels], column[duels], len(self.exposed))
            for column in (own.exposed, own.lost)
        )
        return Units(self.exposed - exposed, self.lost - lost, self.levels, self.labels, own)


def _levels(
    columns: dict[str, list[str]],
) -> tuple[dict[str, Level], dict[tuple[str, str], tuple[str, str]]]:
    """Return the levels, and the labels of members (`Units.labels`). A node's only volume is
    reported as the node, and so is a rack or version of a single node. A rack and a version with
    the same nodes are reported as "rack or version".
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
    """Return the list of units of each of `count` members."""
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=count))
    return [own.tolist() for own in np.split(order, ends[:-1])] if count else []
