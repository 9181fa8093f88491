"""`docs/INVARIANTS.md` names guards and tests that exist, for every invariant."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "INVARIANTS.md"

SECTION = re.compile(r"^## (I\d+):", re.MULTILINE)
ROW = re.compile(r"^\| `([\w/.]+\.py):(\w+)` \| [^|]+ \| `([\w/.]+\.py)::(\w+)` \|$")


def sections() -> dict[str, list[str]]:
    """Return the rows of the tables by invariant, without their heads."""
    _, *parts = SECTION.split(DOCUMENT.read_text())
    return {
        name: [line for line in text.splitlines() if line.startswith("| `")]
        for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


def defined(path: Path) -> set[str]:
    """Return the names of all functions and methods of a module, inner ones too."""
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def untrue(row: str) -> Iterator[str]:
    """Yield what a row says and the repository does not have."""
    match = ROW.match(row)
    if match is None:
        yield f"not a row of guard and test: {row}"
        return
    guard_file, guard, test_file, test = match.groups()
    for file, name in ((guard_file, guard), (test_file, test)):
        if name not in defined(ROOT / file):
            yield f"{file} does not define {name}"
    if not test_file.startswith("tests/") or not test.startswith("test_"):
        yield f"{test_file}::{test} is no test"


def test_every_invariant_has_guards() -> None:
    """
    The ten of the design and that of the log, in order, each with one row at least.
    """
    found = sections()

    assert [f"I{number}" for number in range(1, 12)] == list(found)
    assert all(found.values())


def test_every_guard_and_test_exists() -> None:
    """
    Nothing was renamed or removed without the table.
    """
    rows = [row for rows in sections().values() for row in rows]

    assert [] == [fault for row in rows for fault in untrue(row)]
