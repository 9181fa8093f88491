"""Checks each guard of `guards.tsv` against the test that is named beside it.

Each row of `guards.tsv` names a guard (a function) and a test. The tool removes one check of the
guard at a time and runs the test, until the test fails. If the test passes for every removed check,
it does not test the guard. If the test fails because the code now crashes (on None, for instance),
that does not count as detection.

The test runs in a forked process that imports the changed module. If the test starts processes of
its own, they would import the unchanged file. Such a test runs once more in a copy of the
repository with the change.
"""

import ast
import csv
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from tools.mutants import child, suite
from tools.mutants.mutation import Change, Mutant, changes, mutants_of, mutated
from tools.mutants.suite import ROOT, checksum
from tools.mutants.verdicts import FOLDER, content

GUARDS = Path(__file__).with_name("guards.tsv")
ANSWERS = FOLDER / "guards.json"
MUTANTS_MAX = 60
MESSAGE_MAX = 120
GUARD_S = 120
STUMBLES = (
    *("AttributeError", "TypeError", "NameError", "UnboundLocalError", "IndexError", "KeyError"),
    *("StopIteration", "ZeroDivisionError", "RecursionError"),
)
TEST_CPU_S = 120


@dataclass(frozen=True, slots=True)
class Guard:
    """A row of `GUARDS`."""

    invariant: str
    path: str
    function: str
    what: str
    test_file: str
    test: str

    def test_id(self) -> str:
        """Return the test as pytest names it."""
        tree = ast.parse((ROOT / self.test_file).read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == self.test:
                return f"{self.test_file}::{self.test}"
            if isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef) and inner.name == self.test:
                        return f"{self.test_file}::{node.name}::{self.test}"
        raise LookupError(f"{self.test_file} has no {self.test}")


@dataclass(frozen=True, slots=True)
class Answer:
    """The result for a guard. `red` is the change with which the test failed; "" if the test never
    failed."""

    guard: Guard
    tried: int
    red: str = ""
    message: str = ""
    trouble: str = ""


def main(only: str, out: Path | None) -> int:
    """Try all guards whose row contains `only`. Return 1 if a guard is not tested by its test."""
    suite.preload()
    guards = [guard for guard in guards_listed() if only in " ".join(astuple(guard))]
    answers: list[Answer] = []
    known = load()
    with tempfile.TemporaryDirectory(prefix="suture-guards-") as folder:
        trials = Trials(Path(folder))
        for guard in guards:
            earlier = known.get(proof(guard))
            answer = replace(earlier, guard=guard) if earlier else trials.answer(guard)
            answers.append(answer)
            known[proof(guard)] = answer
            save(known)
            said = f"GREEN {answer.trouble}"
            if answer.red:
                said = f"red without `{answer.red}`: {answer.message}"
            print(f"{guard.path}:{guard.function} | {guard.test}: {said}", flush=True)
            if out is not None:
                out.write_text(json.dumps([as_json(one) for one in answers], indent=1) + "\n")
    green = [answer for answer in answers if not answer.red]
    print(f"{len(answers)} guards, {len(green)} whose test stays green")
    return 1 if green else 0


def guards_listed() -> list[Guard]:
    """Return all rows of `GUARDS`. Raise TypeError if the columns are wrong."""
    with GUARDS.open(newline="") as file:
        return [Guard(*row) for row in list(csv.reader(file, csv.excel_tab))[1:]]


def proof(guard: Guard) -> str:
    """Return a checksum of everything on which the answer for a guard depends: the guard, the test,
    and the shared test code."""
    return checksum(
        f"{guard.function} {guard.test}",
        *map(content, (guard.path, guard.test_file, "tests/support")),
    )


def load() -> dict[str, Answer]:
    """Return the answers of earlier runs."""
    if not ANSWERS.is_file():
        return {}
    nothing = Guard("", "", "", "", "", "")
    return {
        key: Answer(nothing, one["tried"], one["red_without"], one["message"], one["trouble"])
        for key, one in json.loads(ANSWERS.read_text()).items()
    }


def save(known: dict[str, Answer]) -> None:
    """Store answers for the next run."""
    FOLDER.mkdir(exist_ok=True)
    ANSWERS.write_text(json.dumps({key: as_json(answer) for key, answer in known.items()}))


def as_json(answer: Answer) -> dict[str, Any]:
    """Return an answer for JSON."""
    guard = answer.guard
    return {
        "invariant": guard.invariant,
        "guard": f"{guard.path}:{guard.function}",
        "what": guard.what,
        "test": f"{guard.test_file}::{guard.test}",
        "tried": answer.tried,
        "red_without": answer.red,
        "message": answer.message,
        "trouble": answer.trouble,
    }


def checks_of(guard: Guard) -> list[Mutant]:
    """Return the changes that remove a check of the guard."""
    return checks_in(guard.path, (ROOT / guard.path).read_text(), guard.function)


def checks_in(path: str, source: str, function: str) -> list[Mutant]:
    """Return the changes that remove a check of a function. The changes that are most likely to
    remove it come first.

    If the function has no checks, return all its changes, because its result is then the guard.
    """
    tree = ast.parse(source)
    lines = lines_of(tree, function)
    inside = [
        (rank(mutant, change), mutant)
        for mutant, change in zip(mutants_of(path, source), changes(tree), strict=True)
        if mutant.is_in_function and mutant.line in lines
    ]
    checks = [(position, mutant) for position, mutant in inside if position is not None]
    chosen = checks or [(0, mutant) for _, mutant in inside]
    return [mutant for _, mutant in sorted(chosen, key=lambda pair: pair[0])][:MUTANTS_MAX]


def lines_of(tree: ast.Module, function: str) -> set[int]:
    """Return the numbers of the lines of all functions and methods named `function`."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def rank(mutant: Mutant, change: Change) -> int | None:
    """Return a rank of a change: the lower, the more likely the change removes a check. Return None
    if it does not remove a check."""
    node, spot = change.spot.node(), change.spot
    is_condition = spot.field == "test" and isinstance(spot.parent, ast.If | ast.IfExp)
    if mutant.after == "False" and is_condition:
        return 0
    if mutant.after == "nothing":
        return 1
    if isinstance(node, ast.BoolOp) and mutant.after not in ("True", "False", "None"):
        return 2
    if mutant.after == "True" or spot.field == "ifs":
        return 4
    if isinstance(node, ast.Compare | ast.UnaryOp) and mutant.after != "None":
        return 3
    if isinstance(node, ast.ExceptHandler):
        return 5
    return None


class Trials:
    """Runs the tests of guards with one check of the guard removed."""

    def __init__(self, folder: Path) -> None:
        self._scratch = folder / "tests"
        self._copy = folder / "copy"
        self._green: dict[tuple[str, bool], bool] = {}

    def answer(self, guard: Guard) -> Answer:
        """Remove one check of a guard at a time until its test fails; return the result."""
        test = guard.test_id()
        checks = checks_of(guard)
        if not checks:
            return Answer(guard, 0, trouble="(nothing in it can be taken out)")
        source = (ROOT / guard.path).read_text()
        tried, until_s = 0, time.monotonic() + GUARD_S
        for in_copy in (False, True):
            if in_copy and not starts_processes(guard.test_file):
                continue
            if not self._is_green(test, in_copy=in_copy):
                continue
            for mutant in checks:
                if time.monotonic() > until_s:
                    return Answer(guard, tried, trouble="(given up: its test takes too long)")
                tried += 1
                message = self._complaint(test, mutant, source, in_copy=in_copy)
                if message is not None and not message.startswith(STUMBLES):
                    return Answer(guard, tried, mutant.key, message)
        return Answer(guard, tried, trouble="" if tried else "(red without any change)")

    def _is_green(self, test: str, *, in_copy: bool) -> bool:
        """Return True if the test passes without any change."""
        if (test, in_copy) not in self._green:
            complaint = self._complaint(test, None, "", in_copy=in_copy)
            self._green[test, in_copy] = complaint is None
        return self._green[test, in_copy]

    def _complaint(
        self, test: str, mutant: Mutant | None, source: str, *, in_copy: bool
    ) -> str | None:
        """Return the test's failure message, None if it passes."""
        if in_copy:
            return self._complaint_in_copy(test, mutant, source)

        def trial() -> tuple[str | None]:
            child.limit_time(TEST_CPU_S)
            if mutant is not None:
                sys.meta_path.insert(0, suite.ImportMutant(mutant, source))
            found: tuple[str | None] = suite.in_session([test], self._scratch, first_complaint)
            return found

        ended = child.run(trial, memory_max_bytes=resource.RLIM_INFINITY)
        if ended.timed_out:
            return "it hangs"
        if ended.result is None:
            return ended.fault.strip().splitlines()[-1]
        complaint: str | None = ended.result[0]
        return complaint

    def _complaint_in_copy(self, test: str, mutant: Mutant | None, source: str) -> str | None:
        if not self._copy.exists():
            copy_repository(self._copy)
        if mutant is not None:
            changed = mutated(mutant.path, source, mutant.index)
            (self._copy / mutant.path).write_text(ast.unparse(changed))
        try:
            ended = subprocess.run(
                (sys.executable, "-m", "pytest", "-q", "-x", f"--basetemp={self._scratch}", test),
                cwd=self._copy,
                env={**os.environ, "PYTHONPATH": str(self._copy), "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True,
                text=True,
                timeout=6 * TEST_CPU_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "it hangs"
        finally:
            if mutant is not None:
                (self._copy / mutant.path).write_text(source)
        if ended.returncode == 0:
            return None
        return next((line for line in ended.stdout.splitlines() if line.startswith("E ")), "red")


def first_complaint(items: Sequence[Any], _: object) -> tuple[str | None]:
    """Run the tests; return the first failure message."""
    following: Iterator[Any] = iter([*items[1:], None])
    for item, after in zip(items, following, strict=True):
        for report in suite.reports_of(item, after):
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                message = crash.message if crash is not None else str(report.longrepr)
                return (" ".join(message.split())[:MESSAGE_MAX],)
    return (None,)


def starts_processes(test_file: str) -> bool:
    """Return True if a test file seems to start processes of the product, according to words in its
    text."""
    text = (ROOT / test_file).read_text()
    return test_file.startswith("tests/fault/") or bool(
        re.search(r"subprocess|process|victim|zygote|BIN\b", text)
    )


def copy_repository(target: Path) -> None:
    """Copy the repository without derived files, so that a file can be changed in the copy."""
    shutil.copytree(
        ROOT,
        target,
        ignore=shutil.ignore_patterns(
            ".git", ".venv", ".*_cache", ".mutants", "__pycache__", "out"
        ),
    )
