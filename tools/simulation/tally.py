"""The table of all schedules that were lived, and what they found: each run adds its row.

A row is of a commit, so that its seeds can be lived again; the last one adds them all up.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
HEAD: Final = "| commit | seeds | schedules | steps | violations |"
RULE: Final = "|---|---|---|---|---|"
TOTAL: Final = "**all**"


class Lived(NamedTuple):
    """What one run came to."""

    commit: str
    seeds: range
    schedules: int
    steps: int
    violations: int


def append(path: Path, lived: Lived) -> None:
    """Add the row of a run to the table in a document.

    Raises ValueError where the document has no such table.
    """
    lines = path.read_text().splitlines()
    first = lines.index(HEAD) + 2
    end = next((n for n in range(first, len(lines)) if not lines[n].startswith("|")), len(lines))
    rows = [line for line in lines[first:end] if TOTAL not in line] + [_told(lived)]
    lines[first:end] = [*rows, _total(rows)]
    path.write_text("\n".join(lines) + "\n")


def commit_here() -> str:
    """Return which commit runs; with a plus where files were changed since."""
    here = _git("rev-parse", "--short=7", "HEAD")
    return f"{here}+" if _git("status", "--porcelain", "--untracked-files=no") else here


def _told(lived: Lived) -> str:
    seeds = lived.seeds[: lived.schedules]
    step = f", every {seeds.step}th" if seeds.step > 1 else ""
    cells = (f"{lived.schedules:,}", f"{lived.steps:,}", f"{lived.violations:,}")
    return f"| `{lived.commit}` | {seeds[0]:,} to {seeds[-1]:,}{step} | {' | '.join(cells)} |"


def _total(rows: Sequence[str]) -> str:
    columns = zip(*(row.strip("| ").split(" | ")[2:] for row in rows), strict=True)
    sums = [sum(int(cell.replace(",", "")) for cell in column) for column in columns]
    return f"| {TOTAL} | | {' | '.join(f'{one:,}' for one in sums)} |"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
