"""Rows that come apart are judged as whole containers, and tallies of tasks add up."""

import random
from collections import defaultdict
from itertools import pairwise

import pyarrow as pa
import pytest

from spark_verify.rows import SAMPLE_MAX
from spark_verify.tasks.exchange import ROWS_PER_SLICE, Layout, joined, packed, unpacked
from spark_verify.tasks.tallies import Tallies, collected

IDS = random.Random(3).choices(range(400), k=5_000)
SCHEMA = pa.schema([("container_id", pa.int64()), ("number", pa.int64()), ("word", pa.string())])


def rows(ids: list[int], *, is_coded: bool) -> pa.Table:
    """Return rows of containers, numbered, with words as text or as codes of a dictionary."""
    words = pa.array([f"w{i % 7}" if i % 5 else None for i in range(len(ids))])
    column = words.dictionary_encode() if is_coded else words
    return pa.table({"container_id": ids, "number": range(len(ids)), "word": column})


@pytest.mark.parametrize("layout", [Layout(1, 1), Layout(1, 9), Layout(4, 1), Layout(5, 3)])
@pytest.mark.parametrize("is_coded", [False, True])
def test_no_container_is_cut_in_two(layout: Layout, *, is_coded: bool) -> None:
    """
    However rows are parted, sent and put together, each slice has all rows of its containers, in
    their order, and none is lost.
    """
    table = rows(IDS, is_coded=is_coded)
    sent: dict[int, list[pa.Table]] = defaultdict(list)
    for start in range(0, len(IDS), 900):  # as parts of files
        for number, part in layout.parted(table.slice(start, 900)):
            name, own = unpacked(packed("replicas", part))
            assert name == "replicas"
            sent[number].append(own)

    slices = []
    for tables in sent.values():
        whole, starts = layout.arranged(joined(tables, SCHEMA))
        slices += [
            whole.slice(a, b - a).cast(SCHEMA).to_pylist() for a, b in pairwise(starts.tolist())
        ]

    assert len(sent) == layout.partitions
    assert sorted(IDS) == sorted(row["container_id"] for own in slices for row in own)
    owned = [{row["container_id"] for row in own} for own in slices]
    assert sum(map(len, owned)) == len(set(IDS))
    plain = table.cast(SCHEMA).to_pylist()
    for own in slices:
        by_container = defaultdict(list)
        for row in own:
            by_container[row["container_id"]].append(row)
        for container_id, found in by_container.items():
            assert [row for row in plain if row["container_id"] == container_id] == found


def test_a_table_that_did_not_come_is_an_empty_one() -> None:
    """
    With the columns that it would have had.
    """
    assert joined([], SCHEMA).equals(SCHEMA.empty_table())


def test_words_that_hardly_repeat_travel_as_text() -> None:
    """
    A dictionary as long as its rows would be sent with each blob.
    """
    words = pa.array([f"word {i}" for i in range(2_000)]).dictionary_encode()
    table = pa.table({"container_id": range(2_000), "number": range(2_000), "word": words})

    _, sent = unpacked(packed("replicas", table.slice(0, 100)))

    assert sent["word"].type == pa.string()
    assert sent.equals(table.slice(0, 100).cast(SCHEMA))
    assert len(packed("replicas", table.slice(0, 10))) < 2_500


def test_slices_are_as_long_as_is_judged_at_once() -> None:
    """
    And there are as many partitions as there are workers, or as rows ask for.
    """
    assert Layout(1, 3) == Layout.whole(2 * ROWS_PER_SLICE + 1)
    assert Layout(2, 1) == Layout.of(10, partitions_min=2)
    assert Layout(16, 5) == Layout.of(8_000_000, partitions_min=2)


def test_tallies_of_several_tasks_add_up() -> None:
    """
    Numbers are added by kind and key; of the ids the lowest are kept, however they came.
    """
    one, other = Tallies(), Tallies()
    one.add("plan", ("delete",), (2, 30), range(0, 400, 2))
    one.add("lost", ("dn-1", "v0"), (1,))
    other.add("plan", ("delete",), (1, 12), range(1, 400, 2))

    total = collected([one.text(), other.text()])

    assert {("delete",): [3, 42]} == total.of("plan")
    assert {("dn-1", "v0"): [1]} == total.of("lost")
    assert list(range(SAMPLE_MAX)) == total.ids("plan", ("delete",))
