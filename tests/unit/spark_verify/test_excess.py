"""A plan removes all that is too much, in the order in which it may go."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_verify.pipeline import VerifyRequest, verify
from tests.support.verification.judged import judged
from tests.support.verification.snapshots import OpRow, SnapshotRows, container, gather

CASES = {
    "six where three do": ("R CLOSED 10", "C=7x6", 3),
    "one that differs goes first": ("R CLOSED 10", "C=7x4 U=9@5", 2),
    "racks stay three": ("R CLOSED 10", "C=7&r1x1 C=7&r1 C=7&r1 C=7&r2 C=7&r3", 2),
    "twins of two indexes": (
        "EC CLOSED",
        "C#1=1 C#1=1 C#2=2 C#2=2 C#3=3 C#4=4 C#5=5",
        2,
    ),
    "what is on its way out counts": ("R CLOSED 10 -n0", "C=7x5", 1),
    "whole ones that differ stay": ("R CLOSED 10", "C=7x3 C=9x2", 0),
    "no more than enough": ("R CLOSED 10", "C=7x3", 0),
}

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


IS_RACKED = {name: "&" in replicas for name, (_, replicas, _) in CASES.items()}
"""Cases that share a snapshot: the number of its racks is one of the rules."""


def rows_of(case: str, number: int) -> SnapshotRows:
    """Return the container of a case."""
    kind, replicas, _ = CASES[case]
    words, _, ops = kind.partition(" -")
    return container(number, words, replicas, *([f"-{ops}"] if ops else []))


def one_by_one(case: str, number: int, rack_count: int) -> list[str]:
    """Return who goes if a plan of one row a container is ordered, and made again."""
    rows, gone = rows_of(case, number), list[str]()
    while True:
        plan = [row for row in judged([rows], rack_count=rack_count)[number].plan if row.is_forced]
        if not plan:
            return gone
        (row,) = plan
        gone += row.targets
        for target, index in zip(row.targets, row.indexes, strict=True):
            rows.pending_ops.append(OpRow(number, "DELETE", target, index))


@pytest.mark.parametrize("is_racked", [False, True])
def test_surplus_replicas_are_all_deleted_by_one_plan(tmp_path: Path, is_racked: bool) -> None:
    """The deletes are those of as many single runs, in their order, and are counted."""
    cases = [name for name in CASES if IS_RACKED[name] is is_racked]
    rows = gather([rows_of(case, number) for number, case in enumerate(cases, 1)])
    racks = len({node.rack for node in rows.nodes})

    result = verify(VerifyRequest(str(rows.write(tmp_path / "s")), tmp_path / "out"))

    deletes: dict[int, list[str]] = {}
    for row in pq.read_table(result.table("plan")).to_pylist():
        if row["action"] == "delete":
            deletes.setdefault(row["container_id"], []).extend(row["targets"])
    counts = {number: CASES[case][2] for number, case in enumerate(cases, 1)}
    for number, case in enumerate(cases, 1):
        assert one_by_one(case, number, racks) == deletes.get(number, []), case
        assert counts[number] == len(deletes.get(number, [])), case
    assert sum(counts.values()) == result.summary["plan"]["delete"]["rows"]
