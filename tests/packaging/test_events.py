"""The log's vocabulary: one table, every event in it, every id where it is promised."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from suture.observe.events import AGENT, BOTH, EVENTS, SCM

ROOT = Path(__file__).parents[2]
METHODS = frozenset({"debug", "info", "warning", "error", "exception", "log"})
# Written otherwise than by a call with a literal, or by a library of ours that both use.
ELSEWHERE = frozenset({"audit", "log_lines_lost"})


@dataclass(frozen=True, slots=True)
class Said:
    """One place that logs."""

    event: str
    facts: frozenset[str]
    where: str
    folder: str


def places() -> Iterator[Said]:
    """Yield every call of a logger in the product, those that wait for a commit among them."""
    for folder in ("agent", "ozone", "scanner", "scm", "suture"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and (called := called_log(node)) is not None:
                    method, arguments = called
                    arguments = arguments[1:] if method == "log" else arguments
                    texts = [a.value for a in arguments if isinstance(a, ast.Constant)]
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    assert texts, f"{where}: an event has a literal name"
                    facts = frozenset(keyword.arg for keyword in node.keywords if keyword.arg)
                    yield Said(str(texts[0]), facts, where, folder)


def called_log(call: ast.Call) -> tuple[str, list[ast.expr]] | None:
    """Return the method of a logger that is called, and what it is told; None: none is."""
    function, arguments = call.func, call.args
    if isinstance(function, ast.Attribute) and function.attr == "on_commit" and len(arguments) > 1:
        function, *arguments = arguments
    if not is_log(function):
        return None
    assert isinstance(function, ast.Attribute)
    return function.attr, arguments


def is_log(function: ast.expr) -> bool:
    """Whether this is a method of a structlog logger."""
    if isinstance(function, ast.Name):  # a method that was chosen before hides what is logged
        assert function.id != "log"
    return (
        isinstance(function, ast.Attribute)
        and function.attr in METHODS
        and ast.unparse(function.value).rpartition(".")[2]
        in {"log", "_log", "_log()", "get_logger()"}
    )


def test_every_event_is_in_the_table_and_carries_its_ids() -> None:
    """Every event that operators search for is declared, and each line has the ids of its
    container, volume, datanode or command.
    """
    said = list(places())

    assert len(said) > 60
    unknown = [f"{place.where}: {place.event}" for place in said if place.event not in EVENTS]
    assert [] == unknown
    for place in said:
        missing = set(EVENTS[place.event].ids) - place.facts
        assert not missing, f"{place.where}: {place.event} without {sorted(missing)}"


def test_declared_events_are_exactly_the_logged_ones() -> None:
    """Each process has its own events, and the table has no event that is never logged."""
    said = list(places())

    assert set(EVENTS) == {place.event for place in said} | ELSEWHERE
    assert not set(AGENT) & set(SCM)
    for place in said:
        assert place.event in BOTH or (place.event in SCM) == (place.folder == "scm"), place.where
