"""Rows that arrive in pieces are judged as whole containers, and tallies of tasks add up."""

import pyarrow as pa
import pytest

from spark_verify.judging import ROWS_PER_BATCH, pieces, whole_containers
from spark_verify.tallies import SAMPLE_MAX, Tallies, collected

IDS = (1, 1, 2, 2, 2, 3, 4, 4, 4, 4, 7)


def batches(sizes: tuple[int, ...]) -> list[pa.RecordBatch]:
    """Return the ids cut into batches of these sizes, the last of which has the rest."""
    found, start = [], 0
    for size in (*sizes, len(IDS)):
        found.append(pa.RecordBatch.from_pydict({"container_id": IDS[start : start + size]}))
        start += size
    return found


@pytest.mark.parametrize("sizes", [(), (1,) * 11, (2, 3), (3, 3), (4, 0, 1, 2), (7, 1, 1), (10,)])
def test_no_container_is_cut_in_two(sizes: tuple[int, ...]) -> None:
    """
    However the rows are cut, each table has all rows of its containers, and none is lost.
    """
    tables = list(whole_containers(batches(sizes)))

    owned = [set(table["container_id"].to_pylist()) for table in tables]
    assert [i for table in tables for i in table["container_id"].to_pylist()] == list(IDS)
    assert sum(map(len, owned)) == len(set(IDS))
    assert all(table.num_rows for table in tables)


def test_a_container_longer_than_a_batch_is_one_table() -> None:
    """
    Ten thousand rows of one container wait for each other.
    """
    pieces = [pa.RecordBatch.from_pydict({"container_id": [5] * 100}) for _ in range(100)]

    assert [10_000] == [table.num_rows for table in whole_containers(pieces)]


def test_tables_are_cut_between_containers() -> None:
    """
    Rows in any order: each container is in one piece with all rows of all tables, none is lost, and
    a container across a cut goes to one side of it.
    """
    long_one = [ROWS_PER_BATCH // 3] * 10  # its replicas lie across the first cut
    replicas = [i // 3 for i in range(ROWS_PER_BATCH * 5 // 2)] + long_one
    parts = {
        "containers": list(range(len(replicas) // 3 + 50, 0, -1)),
        "replicas": replicas[::-1],
        "pending_ops": [7, 10**6, ROWS_PER_BATCH // 3, ROWS_PER_BATCH // 3 + 1],
    }
    tables = {name: pa.table({"container_id": ids}) for name, ids in parts.items()}

    found = list(pieces(tables))

    assert len(found) == 3
    for name, ids in parts.items():
        kept = [piece[name]["container_id"].to_pylist() for piece in found]
        assert sorted(ids) == [i for own in kept for i in own]
    owned = [
        {i for table in piece.values() for i in table["container_id"].to_pylist()}
        for piece in found
    ]
    assert sum(map(len, owned)) == len(set.union(*owned))


def test_tallies_of_several_tasks_add_up() -> None:
    """
    Numbers are added by kind and key; of the ids the lowest are kept, however they came.
    """
    one, other = Tallies(), Tallies()
    one.add("plan", ("delete",), (2, 30), range(0, 400, 2))
    one.add("lost", ("dn-1", "v0"), (1,))
    other.add("plan", ("delete",), (1, 12), range(1, 400, 2))

    total = collected([{"tallies": one.rows()}, {"tallies": other.rows()}])

    assert {("delete",): [3, 42]} == total.of("plan")
    assert {("dn-1", "v0"): [1]} == total.of("lost")
    assert list(range(SAMPLE_MAX)) == total.ids("plan", ("delete",))
