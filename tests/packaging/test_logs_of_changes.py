"""What happens in a change of the control plane's state is logged when the change is durable."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOGGED = frozenset(f"_log.{level}" for level in ("debug", "info", "warning", "error", "log"))


def logged_too_early(source: str) -> Iterator[int]:
    """Yield the lines of functions with a change as argument that log at once."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef) and "Change" in _types(function):
            yield from _calls_of_log(function)


def _types(function: ast.FunctionDef) -> set[str]:
    return {ast.unparse(one.annotation) for one in function.args.args if one.annotation}


def _calls_of_log(node: ast.AST) -> Iterator[int]:
    if isinstance(node, ast.Lambda):
        return  # called later
    called = node.func if isinstance(node, ast.Call) else None
    if called is not None and ast.unparse(called) in LOGGED:
        yield called.lineno
    for inner in ast.iter_child_nodes(node):
        yield from _calls_of_log(inner)


def test_a_change_logs_nothing_before_it_is_durable() -> None:
    """
    A commit may fail, on a full disk for instance: then all of it is undone, and an operator who
    switched a machine off on the word of the log would have lost what only it has.
    """
    found = [
        f"{path.relative_to(ROOT)}:{line}: logs within a change: use on_commit"
        for path in sorted((ROOT / "scm").rglob("*.py"))
        for line in logged_too_early(path.read_text())
    ]

    assert [] == found


def test_the_rule_sees_what_it_forbids_and_nothing_else() -> None:
    """At once, in a branch as well; not what waits for the commit, or is in no change."""
    head = "def f(self, change: Change) -> None:\n"

    assert [2] == list(logged_too_early(head + "    _log.info('done')\n"))
    assert [3] == list(logged_too_early(head + "    if self.x:\n        _log.log(3, 'done')\n"))
    assert [] == list(logged_too_early(head + "    change.on_commit(_log.info, 'done')\n"))
    assert [] == list(logged_too_early(head + "    change.on_commit(lambda: _log.info('x'))\n"))
    assert [] == list(logged_too_early("def f(self) -> None:\n    _log.info('done')\n"))
