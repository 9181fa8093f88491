"""Ranges of containers: every row is of one of them, or there are none."""

import random
from collections import Counter

import pyarrow as pa
import pytest

from spark_verify.snapshot import ranges
from spark_verify.snapshot.ranges import Range, ranges_of
from spark_verify.snapshot.snapshot_reading import Group, Part

Files = dict[tuple[str, str], list[list[int]]]
"""Of each table and file its row groups, of each of these the containers of its rows."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of a few rows, of which files are opened for nothing."""
    monkeypatch.setattr(ranges, "ROWS_PER_RANGE", 100)
    monkeypatch.setattr(ranges, "READING_MAX", 2)
    monkeypatch.setattr(ranges, "ROWS_OF_OPENING", 0)


def parts(files: Files) -> list[Part]:
    """Return the files as they are found, a part each."""
    return [
        Part(table, ((file, tuple(Group(i, len(ids), span(ids)) for i, ids in enumerate(own))),))
        for (table, file), own in files.items()
    ]


def span(ids: list[int]) -> tuple[int, int] | None:
    return (min(ids), max(ids)) if ids else None


def read(files: Files, own: Range) -> list[tuple[str, int]]:
    """Return what a range has: the table and the container of each row."""
    found = []
    for part in own.parts:
        for file, groups in part.groups:
            for group in groups:
                rows = pa.table({"container_id": files[part.table, file][group.number]})
                found += [(part.table, i) for i in own.own(rows)["container_id"].to_pylist()]
    return found


def cut(ids: list[int], rows: int) -> list[list[int]]:
    """Return ids in groups of so many rows."""
    return [ids[i : i + rows] for i in range(0, len(ids), rows)]


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_in_one_range_with_all_of_its_container(seed: int) -> None:
    """
    Also rows of a container of which there are more than a group has, containers without replicas,
    replicas without a container, and groups without a row.
    """
    draw = random.Random(seed)
    known = sorted(draw.sample(range(-5, 1_000), 300))
    replicas = sorted(draw.choices(known, k=900) + [draw.randrange(1_000)] * 70)
    ops = sorted(draw.choices(known, k=9))
    files: Files = {
        ("containers", "a"): [*cut(known[:100], 20), []],
        ("containers", "b"): cut(known[100:], 20),
        ("replicas", "c"): cut(replicas, 20),
        ("pending_ops", "d"): cut(ops, 20),
    }

    found = [read(files, own) for own in ranges_of(parts(files), partitions=3)]

    assert len(found) > 9
    assert sum(map(Counter, found), Counter()) == Counter(
        (table, i) for (table, _), own in files.items() for ids in own for i in ids
    )
    owned = [{i for _, i in rows} for rows in found]
    assert sum(map(len, owned)) == len({*known, *replicas})


def test_rows_that_go_to_and_fro_have_none() -> None:
    """
    To read the same groups again and again would take longer than an exchange.
    """
    ids = list(range(1_000))
    in_order: Files = {("replicas", "a"): cut(ids, 20)}
    random.Random(1).shuffle(ids)
    shuffled: Files = {("replicas", "a"): cut(ids, 20)}

    assert ranges_of(parts(in_order), partitions=3)
    assert ranges_of(parts(shuffled), partitions=3) == []


def test_groups_of_which_nothing_is_said_have_none() -> None:
    """
    A file may leave out which ids it has; it may also be one large group, which tasks cannot share.
    """
    ids = list(range(1_000))
    unknown = Part("replicas", (("b", (Group(0, 5),)),))

    assert ranges_of([*parts({("replicas", "a"): cut(ids, 20)}), unknown], partitions=3) == []
    assert ranges_of(parts({("replicas", "a"): [ids]}), partitions=3) == []


def test_where_they_would_be_few_an_exchange_gives_more_work_at_once() -> None:
    """
    One range is enough where there would be one partition, and leaves a core idle where two.
    """
    few = parts({("replicas", "a"): [[1, 2, 3]], ("containers", "b"): [[1, 2]]})

    assert len(ranges_of(few, partitions=1)) == 1
    assert ranges_of(few, partitions=2) == []
