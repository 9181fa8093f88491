"""Tables in a terminal that is too narrow for them stay tables."""

import re

import pytest
from rich.console import Console

from suture.terminal.output import grid, parts_of, print_table

COLUMNS = ["datanode", "address", "rack", "health", "state", "containers#", "free#", "heartbeat"]
ROWS = [
    (f"1a5e6c4{n}", f"192.0.2.{n}:9859", "/rack0", "HEALTHY", "IN_SERVICE", n, "72.4 GiB", "0.1 s")
    for n in range(3)
]  # fmt: skip


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Console:
    """Be a terminal of 80 columns."""
    console = Console(width=80, markup=False, emoji=False, highlight=False)
    monkeypatch.setattr("suture.terminal.output.people", console)
    return console


def test_wide_table_is_split_to_fit_the_terminal(narrow: Console) -> None:
    """Each part has the columns that identify the rows, and no cell is cut or missing."""
    with narrow.capture() as captured:
        print_table(grid("", COLUMNS, ROWS))

    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for row in ROWS:
        assert 2 == text.count(str(row[0]))
        assert all(str(cell) in text for cell in row)
    for column in COLUMNS[1:]:
        assert 1 == len(re.findall(rf"(?<!/)\b{column.rstrip('#')}\b", text)), column


def test_a_table_that_fits_is_one(narrow: Console) -> None:
    """
    Nothing changes about it.
    """
    with narrow.capture() as captured:
        print_table(grid("", COLUMNS[:4], [row[:4] for row in ROWS]))

    assert 1 == captured.get().count(str(ROWS[0][0]))


def test_rows_that_begin_alike_are_told_apart_by_two_columns() -> None:
    """
    A datanode with two volumes: its volumes are repeated, too. What is empty is left out.
    """
    rows = [("dn1", "/v1", "x" * 40, "", "y" * 40), ("dn1", "/v2", "x" * 40, "", "y" * 40)]

    parts = parts_of(grid("", ["datanode", "volume", "a", "empty", "b"], rows), 60)

    assert [["datanode", "volume", "a"], ["datanode", "volume", "b"]] == [
        [str(column.header) for column in part.columns] for part in parts
    ]
