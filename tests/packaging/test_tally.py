"""The table of what the simulation lived: each run adds a row."""

from pathlib import Path

import pytest

from tools.simulation import tally

HEAD = "commit\tfirst_seed\tlast_seed\tstep\tschedules\tsteps\tviolations\n"


def test_tally_gets_a_row_for_each_run(tmp_path: Path) -> None:
    """One of two runs was ended early. Their rows are in order."""
    table = tmp_path / "tally.tsv"
    table.write_text(HEAD)

    tally.append(table, tally.TallyRow("abc1234", range(1, 2001), 2_000, 7_000_000, 0))
    tally.append(table, tally.TallyRow("def5678", range(5, 1005, 10), 12, 30_000, 1))

    assert table.read_text() == (
        f"{HEAD}abc1234\t1\t2000\t1\t2000\t7000000\t0\ndef5678\t5\t115\t10\t12\t30000\t1\n"
    )


def test_a_file_that_is_no_such_table_is_left_alone(tmp_path: Path) -> None:
    """
    Another file was named by mistake: nothing is written.
    """
    document = tmp_path / "document.md"
    document.write_text("# Title\n")

    with pytest.raises(ValueError, match="does not begin with commit"):
        tally.append(document, tally.TallyRow("abc1234", range(1, 2), 1, 1, 0))

    assert document.read_text() == "# Title\n"
