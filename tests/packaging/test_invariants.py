"""`tools/mutants/guards.tsv` names guards and tests that exist, for every invariant."""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tools.mutants.invariants import Guard, guards_listed

ROOT = Path(__file__).resolve().parents[2]
DEFINITION = re.compile(r"^ *def (\w+)\(", re.MULTILINE)
COUNT = 11  # the ten of the design and that of the log


@functools.cache
def defined(path: Path) -> set[str]:
    """Return the names of all functions and methods of a module, inner ones too."""
    return set(DEFINITION.findall(path.read_text())) if path.is_file() else set()


def untrue(guard: Guard) -> Iterator[str]:
    """Yield what a row says and the repository does not have."""
    for file, name in ((guard.path, guard.function), (guard.test_file, guard.test)):
        if name not in defined(ROOT / file):
            yield f"{file} does not define {name}"
    if not guard.test_file.startswith("tests/") or not guard.test.startswith("test_"):
        yield f"{guard.test_file}::{guard.test} is no test"


def test_every_invariant_has_guards() -> None:
    """
    Each has one row at least, and the document names it.
    """
    names = [f"I{number}" for number in range(1, COUNT + 1)]
    document = (ROOT / "docs" / "INVARIANTS.md").read_text()

    assert names == list(dict.fromkeys(guard.invariant for guard in guards_listed()))
    assert names == [line.split()[1] for line in document.splitlines() if line.startswith("| I")]


def test_every_guard_and_test_exists() -> None:
    """
    Nothing was renamed or removed without the table.
    """
    assert [] == [fault for guard in guards_listed() for fault in untrue(guard)]
