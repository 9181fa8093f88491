"""The table of all runs of the simulation, with one row per run.

A row names the commit, so that the schedules of its seeds can be run again.
"""

import csv
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
HEAD: Final = ("commit", "first_seed", "last_seed", "step", "schedules", "steps", "violations")


class TallyRow(NamedTuple):
    """The result of a run."""

    commit: str
    seeds: range
    schedules: int
    steps: int
    violations: int


def append(path: Path, lived: TallyRow) -> None:
    """Add the row of a run to a table. Raise ValueError if the file is no such table."""
    with path.open("r+", newline="") as file:
        if next(csv.reader(file, csv.excel_tab), []) != list(HEAD):
            raise ValueError(f"{path} does not begin with {' '.join(HEAD)}")
        file.seek(0, 2)
        seeds = lived.seeds[: lived.schedules]
        counts = (lived.schedules, lived.steps, lived.violations)
        row = (lived.commit, seeds[0], seeds[-1], seeds.step, *counts)
        csv.writer(file, csv.excel_tab, lineterminator="\n").writerow(row)


def commit_here() -> str:
    """Return the short id of the commit in the checkout, with a plus sign if files were changed
    since."""
    here = _git("rev-parse", "--short=7", "HEAD")
    return f"{here}+" if _git("status", "--porcelain", "--untracked-files=no") else here


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
