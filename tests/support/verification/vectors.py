"""The published vectors of container health, read from `tests/golden/health/vectors.txt`.

All vectors together form a snapshot. The judge (tests/unit/health), the Spark job (tests/spark) and
a control plane (tests/integration) evaluate it, and their results must equal those in the table.

The containers share their datanodes. A replica is on a datanode in the state that its word names,
and on the first such datanode that has no other replica of its container.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from health.rules import Rules
from health.words import HealthState, states_counted
from tests.support.verification.classifier import Opinion
from tests.support.verification.snapshots import NodeRow, SnapshotRows, container, gather

TABLE: Final = Path(__file__).parents[2] / "golden" / "health" / "vectors.txt"
COLUMNS: Final = 12
NEVER: Final = "never"
UNKNOWN: Final = "UNKNOWN"
"""Marks a container that the control plane does not know, although datanodes have replicas."""

Own = tuple[tuple[str, int], ...]
"""Rules that a vector sets, by name."""

_RULES: Final = frozenset(field.name for field in fields(Rules))


@dataclass(frozen=True, slots=True)
class Told:
    """The result for one container, in the words of the table."""

    states: str
    queue: str
    flags: str
    checksum_class: str
    eligibility: str


@dataclass(frozen=True, slots=True)
class Vector:
    """One row: a container, and the expected result."""

    name: str
    what: str
    replicas: str
    ops: str
    own_fields: tuple[tuple[str, int], ...]
    own_rules: Own
    told: Told
    need: tuple[int, int] | None
    """Missing replicas, now and after the pending commands; None if the vector does not define
    them."""
    becomes: str
    """State to which a control plane changes the container before the check; "" = unchanged."""
    is_live: bool
    """True if a control plane can have such a container."""


def vectors() -> list[Vector]:
    """Return all rows of the table."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    found = [_vector(line) for line in lines if line and not line.startswith("#")]
    names = [vector.name for vector in found]
    assert len(names) == len(set(names)), "each row has its own name"
    return found


def by_rules(chosen: Iterable[Vector]) -> Mapping[Own, list[Vector]]:
    """Return the vectors grouped by the rules that they set. The group that sets no rules comes
    first. Each group needs its own cluster.
    """
    groups: dict[Own, list[Vector]] = {(): []}
    for vector in chosen:
        groups.setdefault(vector.own_rules, []).append(vector)
    return groups


def world(chosen: Sequence[Vector]) -> SnapshotRows:
    """Return one snapshot of the vectors. The container of the first vector has the id 1."""
    return _on_shared_nodes(gather(_rows(i, vector) for i, vector in enumerate(chosen, 1)))


def rack_count(rows: SnapshotRows) -> int:
    """Return the number of racks with a node that is not dead."""
    return len({node.rack for node in rows.nodes if node.health != "DEAD"})


def told(opinion: Opinion) -> Told:
    """Return an opinion in the words of the table."""
    numbers = states_counted(HealthState[opinion.state], is_stuck=opinion.stuck)
    return Told(
        " + ".join(HealthState(number).name for number in numbers) or "HEALTHY",
        opinion.queue,
        " ".join(sorted(opinion.flags)) or "-",
        opinion.checksum_class,
        opinion.eligibility,
    )


def _vector(line: str) -> Vector:
    words = [word.strip() for word in line.split("|")]
    assert len(words) == COLUMNS, line
    name, what, replicas, ops, own, *found, need, live = words
    states, queue, flags, checksum_class, eligibility = found
    pairs = [(key, int(value)) for key, _, value in (word.partition("=") for word in own.split())]
    becomes, _, why = live.partition(": ")
    assert not live or why, f"{name} must say why a control plane does not show it"
    return Vector(
        name,
        what,
        replicas,
        ops,
        tuple(pair for pair in pairs if pair[0] not in _RULES),
        tuple(pair for pair in pairs if pair[0] in _RULES),
        Told(states, queue, " ".join(sorted(flags.split())), checksum_class, eligibility),
        _pair(need),
        "" if becomes == NEVER else becomes,
        becomes != NEVER,
    )


def _pair(words: str) -> tuple[int, int] | None:
    if not words:
        return None
    now, after = map(int, words.split())
    return now, after


def _rows(container_id: int, vector: Vector) -> SnapshotRows:
    """Return the rows of a vector; for an unknown container there are only replicas."""
    own: dict[str, Any] = dict(vector.own_fields)
    is_known = vector.what != UNKNOWN
    what = vector.what if is_known else "R CLOSED"
    rows = container(container_id, what, vector.replicas, vector.ops, **own)
    if not is_known:
        rows.containers.clear()
    return rows


def _on_shared_nodes(rows: SnapshotRows) -> SnapshotRows:
    nodes = {node.datanode_id: node for node in rows.nodes}
    used: dict[tuple[int, NodeRow], int] = {}
    names: dict[str, str] = {}
    shared: dict[str, NodeRow] = {}
    for name, container_id in _mentioned(rows):
        if name in names:
            continue
        kind = replace(nodes[name], datanode_id="")
        number = used[container_id, kind] = used.get((container_id, kind), 0) + 1
        words = (kind.rack.removeprefix("/"), kind.health, kind.op_state, str(number))
        names[name] = "-".join(words).lower()
        shared[names[name]] = replace(kind, datanode_id=names[name])
    return SnapshotRows(
        rows.containers,
        [
            replace(
                row,
                datanode_id=names[row.datanode_id],
                origin_datanode_id=names.get(row.origin_datanode_id, row.origin_datanode_id),
            )
            for row in rows.replicas
        ],
        [shared[name] for name in sorted(shared)],
        [replace(op, datanode_id=names[op.datanode_id]) for op in rows.pending_ops],
    )


def _mentioned(rows: SnapshotRows) -> list[tuple[str, int]]:
    return [(row.datanode_id, row.container_id) for row in (*rows.replicas, *rows.pending_ops)]
