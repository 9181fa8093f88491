"""A plan removes all that is too much, in the order in which it may go."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_verify.pipeline import Request, verify
from tests.support.verification.judged import judged
from tests.support.verification.snapshots import OpRow, SnapshotRows, container

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


def one_by_one(rows: SnapshotRows, rack_count: int) -> list[str]:
    """Return who goes if a plan of one row a container is ordered, and made again."""
    gone: list[str] = []
    while True:
        plan = [row for row in judged([rows], rack_count=rack_count)[1].plan if row.is_forced]
        if not plan:
            return gone
        (row,) = plan
        gone += row.targets
        for target, index in zip(row.targets, row.indexes, strict=True):
            rows.pending_ops.append(OpRow(1, "DELETE", target, index))


@pytest.mark.parametrize("case", CASES)
def test_all_that_is_too_much_goes_in_one_run(tmp_path: Path, case: str) -> None:
    """
    The replicas that as many runs would have removed, in their order; and they are counted.
    """
    kind, replicas, count = CASES[case]
    words = kind.split()
    ops = [words.pop()] if words[-1] == "-n0" else []
    rows = container(1, " ".join(words), replicas, *ops)
    racks = len({node.rack for node in rows.nodes})
    expected = one_by_one(container(1, " ".join(words), replicas, *ops), racks)

    result = verify(Request(str(rows.write(tmp_path / "s")), tmp_path / "out"))

    plan = pq.read_table(result.table("plan")).to_pylist()
    deletes = [row["targets"] for row in plan if row["action"] == "delete"]
    assert [[name] for name in expected] == deletes
    assert count == len(deletes) == result.summary["plan"]["delete"]["rows"]
