"""`docs/WHERE.md` answers with places that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| ([^|]+) \| `([\w/.]+\.py):(\w+)` \|$")
QUESTIONS_MIN = 30


def rows() -> list[tuple[str, str, str]]:
    """Return question, file and name of each row; a row of another form fails."""
    lines = (ROOT / "docs" / "WHERE.md").read_text().splitlines()
    tables = [line for line in lines if line.startswith("|")]
    told = [line for line in tables if not line.startswith(("|---", "| Question"))]
    matches = [ROW.match(line) for line in told]
    assert all(matches), [line for line, match in zip(told, matches, strict=True) if not match]
    return [(match[1], match[2], match[3]) for match in matches if match]


def defined(file: str) -> set[str]:
    """Return the names of all functions, methods and classes of a module."""
    path = ROOT / file
    if not path.is_file():
        return set()
    kinds = (ast.FunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


def test_every_place_exists() -> None:
    """
    Nothing was renamed or moved without the page.
    """
    lost = [f"{file}:{name}" for _, file, name in rows() if name not in defined(file)]

    assert [] == lost


def test_navigation_page_answers_many_distinct_questions() -> None:
    """No question occurs twice."""
    questions = [question for question, _, _ in rows()]

    assert len(questions) >= QUESTIONS_MIN
    assert len(questions) == len(set(questions))
