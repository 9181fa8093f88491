"""Rows that come apart are judged as whole containers, and tallies of tasks add up."""

import random
from collections import defaultdict

import pyarrow as pa
import pytest

from spark_verify.input_columns import SAMPLE_MAX
from spark_verify.tasks import judge_batches
from spark_verify.tasks.judge_batches import by_container, slices_of
from spark_verify.tasks.row_exchange import Layout, joined, packed, unpacked
from spark_verify.tasks.tallies import Tallies, collected

IDS = random.Random(3).choices(range(400), k=5_000)
SCHEMA = pa.schema([("container_id", pa.int64()), ("number", pa.int64()), ("word", pa.string())])


def rows(ids: list[int], *, is_coded: bool) -> pa.Table:
    """Return rows of containers, numbered, with words as text or as codes of a dictionary."""
    words = pa.array([f"w{i % 7}" if i % 5 else None for i in range(len(ids))])
    column = words.dictionary_encode() if is_coded else words
    return pa.table({"container_id": ids, "number": range(len(ids)), "word": column})


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("rows_per_slice", [70, 5_000])
@pytest.mark.parametrize("is_coded", [False, True])
def test_no_container_is_cut_in_two(
    partitions: int, rows_per_slice: int, monkeypatch: pytest.MonkeyPatch, *, is_coded: bool
) -> None:
    """
    However rows are parted, sent and put together, each slice has all rows of its containers, in
    their order, of every table, and none is lost.
    """
    monkeypatch.setattr(judge_batches, "ROWS_PER_SLICE", rows_per_slice)
    table, few = rows(IDS, is_coded=is_coded), rows([7, 300, 300, 399, 401], is_coded=is_coded)
    layout = Layout(partitions)
    sent: dict[int, list[pa.Table]] = defaultdict(list)
    for start in range(0, len(IDS), 900):  # as parts of files
        for number, part in layout.parted(table.slice(start, 900)):
            name, own = unpacked(packed("replicas", part))
            assert name == "replicas"
            sent[number].append(own)

    found = []
    for tables in sent.values():
        whole = by_container(joined(tables, SCHEMA))
        for piece in slices_of({"replicas": whole, "pending_ops": by_container(few)}):
            found.append({name: own.cast(SCHEMA).to_pylist() for name, own in piece.items()})

    assert len(sent) == partitions
    assert (len(found) > partitions) == (rows_per_slice < len(IDS))
    plain = table.cast(SCHEMA).to_pylist()
    in_order = sorted(plain, key=lambda row: row["container_id"])
    slices_found = [piece["replicas"] for piece in found]
    if partitions == 1:
        assert in_order == [row for own in slices_found for row in own]
        assert few.cast(SCHEMA).to_pylist() == [r for piece in found for r in piece["pending_ops"]]
    owned = [{row["container_id"] for own in piece.values() for row in own} for piece in found]
    assert partitions > 1 or sum(map(len, owned)) == len({*IDS, 401})
    assert sorted(map(str, plain)) == sorted(str(row) for own in slices_found for row in own)
    for own in slices_found:
        assert len(own) <= rows_per_slice + max(map(IDS.count, set(IDS)))
        ids = {row["container_id"] for row in own}
        assert [row for row in in_order if row["container_id"] in ids] == own


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


def test_there_are_as_many_partitions_as_workers_or_as_rows_ask_for() -> None:
    """
    Whichever is more.
    """
    assert Layout(2) == Layout.of(10, partitions_min=2)
    assert Layout(16) == Layout.of(8_000_000, partitions_min=2)


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
