"""Files are found again by what their blocks say of themselves."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suture.client.put_metadata import (
    PartBlock,
    PutMetadata,
    decoded,
    files_of,
    metadata_of,
    part_of,
)

PLACE = {"container_id": 1, "local_id": 2, "bcsid": 3, "length_bytes": 4}
NOTE = PutMetadata("client-1", 3, 30, 1_700_000_000_000)


def parts(
    key: str, *, first_id: int, note: PutMetadata | None, lengths: tuple[int, ...] = (10, 10, 10)
) -> list[PartBlock]:
    """Blocks of one put, with ids from `first_id` on."""
    return [
        PartBlock(1, first_id + part, 5, length, key, part, note)
        for part, length in enumerate(lengths)
    ]


@given(st.text(min_size=1), st.integers(0, 2**40), st.integers(1, 2**20), st.integers(0, 2**60))
def test_put_note_is_read_back(key: str, part: int, part_count: int, size_bytes: int) -> None:
    """The key may have any name."""
    note = PutMetadata("3f-7", part_count, size_bytes, 1)

    found = part_of(dict(metadata_of(key, part, note, "rs-3-2-1024k")), **PLACE)

    assert PartBlock(1, 2, 3, 4, key, part, note) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id",
        "id 1 2",
        "id 1 2 3 4",
        "id 0 2 3",
        "id -1 2 3",
        "id 1 x 3",
        "id \u0661 2 3",
        " 1 2 3",
    ],
)
def test_invalid_put_note_is_ignored(text: str) -> None:
    """No part of it is used."""
    assert decoded(text) is None


def test_a_block_that_names_no_key_is_of_no_file() -> None:
    """
    Other clients may write what they like.
    """
    assert part_of({"key": "a"}, **PLACE) is None
    assert part_of({"part": "0"}, **PLACE) is None
    assert part_of({"key": "a", "part": "first"}, **PLACE) is None


@given(st.integers(0, 2**32))
def test_puts_of_one_key_are_not_mixed(seed: int) -> None:
    """Each put is whole by itself however its blocks are shuffled, and the older one comes
    first.
    """
    newer = replace(NOTE, put_id="client-2")
    blocks = parts("a", first_id=1, note=NOTE) + parts("a", first_id=7, note=newer)
    random.Random(seed).shuffle(blocks)

    older, latest = files_of(blocks)

    assert [1, 2, 3] == [block.local_id for block in older.blocks]
    assert [7, 8, 9] == [block.local_id for block in latest.blocks]
    assert older.is_whole
    assert latest.is_whole
    assert (30, 1_700_000_000_000) == (older.size_bytes, older.at_ms)


def test_a_part_that_was_written_again_counts_once() -> None:
    """
    The later one: the writer had left the earlier one behind.
    """
    blocks = parts("a", first_id=1, note=NOTE)
    again = replace(blocks[1], local_id=20, container_id=2)

    (found,) = files_of([*blocks, again])

    assert ([1, 20, 3], True) == ([block.local_id for block in found.blocks], found.is_whole)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_put_without_a_part_is_not_whole(missing: int) -> None:
    """A put that lacks any part is not whole, and neither is one whose bytes do not add up."""
    blocks = parts("a", first_id=1, note=NOTE)
    short = [*blocks[:missing], replace(blocks[missing], length_bytes=9), *blocks[missing + 1 :]]

    assert not files_of(blocks[:missing] + blocks[missing + 1 :])[0].is_whole
    assert not files_of(short)[0].is_whole


def test_without_notes_what_fits_is_taken_as_uncertain() -> None:
    """These are from earlier writers. The parts have no gaps, the last is not longer, and two
    puts are never mixed.
    """
    (fits,) = files_of(parts("a", first_id=1, note=None, lengths=(10, 10, 4)))
    (gap,) = files_of(parts("a", first_id=1, note=None)[1:])
    (uneven,) = files_of(parts("a", first_id=1, note=None, lengths=(10, 4, 10)))
    (longer,) = files_of(parts("a", first_id=1, note=None, lengths=(10, 10, 11)))
    (mixed,) = files_of(
        parts("a", first_id=1, note=None) + parts("a", first_id=5, note=None, lengths=(10, 10))
    )

    assert (True, False) == (fits.is_whole, fits.is_certain)
    assert [False] * 4 == [one.is_whole for one in (gap, uneven, longer, mixed)]
