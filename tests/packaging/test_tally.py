"""The table of what the simulation lived: each run adds a row, and all are added up."""

from pathlib import Path

import pytest

from tools.simulation import tally

EMPTY = f"# Title\n\n{tally.HEAD}\n{tally.RULE}\n\nAfter it.\n"


def test_each_run_adds_a_row_and_the_sum_follows(tmp_path: Path) -> None:
    """
    Two runs, of which one was ended early: their rows in order, one sum, and the text around it.
    """
    document = tmp_path / "document.md"
    document.write_text(EMPTY)

    tally.append(document, tally.Lived("abc1234", range(1, 2001), 2_000, 7_000_000, 0))
    tally.append(document, tally.Lived("def5678", range(5, 1005, 10), 12, 30_000, 1))

    assert document.read_text() == EMPTY.replace(
        f"{tally.RULE}\n",
        f"{tally.RULE}\n"
        "| `abc1234` | 1 to 2,000 | 2,000 | 7,000,000 | 0 |\n"
        "| `def5678` | 5 to 115, every 10th | 12 | 30,000 | 1 |\n"
        "| **all** | | 2,012 | 7,030,000 | 1 |\n",
    )


def test_a_document_without_the_table_is_left_alone(tmp_path: Path) -> None:
    """
    Another document was named by mistake: nothing is written.
    """
    document = tmp_path / "document.md"
    document.write_text("# Title\n")

    with pytest.raises(ValueError, match="is not in list"):
        tally.append(document, tally.Lived("abc1234", range(1, 2), 1, 1, 0))

    assert document.read_text() == "# Title\n"
