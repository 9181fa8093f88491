"""Stores verdicts, so that a second run only tries mutants to which something has changed.

The verdict on a killed mutant is valid while its module and the test that killed it are unchanged.
The verdict on a survivor is valid while its module, its tests and their shared code are unchanged.
Each verdict is a line of JSON in `.mutants/verdicts.jsonl`, so an interrupted run continues.
"""

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tools.mutants.mutation import Mutant, mutants_of
from tools.mutants.suite import ROOT, Knowledge, Seen, Verdict, checksum

FOLDER = ROOT / ".mutants"
VERDICTS = FOLDER / "verdicts.jsonl"
TESTS = FOLDER / "tests.json"


@cache
def content(path: str) -> str:
    """Return the checksum of a file, or of all files of a folder."""
    here = ROOT / path
    if here.is_dir():
        return checksum(*(file.read_text() for file in sorted(here.rglob("*.py"))))
    return checksum(here.read_text()) if here.is_file() else ""


@cache
def content_for(file: str, test: str) -> str:
    """Return the checksum of a test file without its other tests. The verdict of one test depends
    on it."""
    tree = ast.parse((ROOT / file).read_text()) if (ROOT / file).is_file() else ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef):
            node.body = [part for part in node.body if not is_other_test(part, test)]
    return checksum(ast.dump(tree))


def is_other_test(node: ast.stmt, test: str) -> bool:
    """Return True if a statement of a test file defines another test."""
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and node.name != test


def proof(verdict: Verdict, tests: Sequence[Seen]) -> str:
    """Return a checksum of everything on which a verdict depends, except the module."""
    if verdict.outcome == "killed" and verdict.killer:
        file, *names = verdict.killer.split("[")[0].split("::")
        return content_for(file, names[-1])
    files = sorted({seen.test.split("::")[0] for seen in tests})
    names = sorted(seen.test for seen in tests)
    return checksum(content("tests/support"), *names, *map(content, files))


@dataclass(slots=True)
class Verdicts:
    """The verdicts of earlier runs and of this one."""

    _lines: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def load(cls) -> "Verdicts":
        """Read the last verdict of each mutant."""
        found = cls()
        if VERDICTS.is_file():
            for text in VERDICTS.read_text().splitlines():
                line = json.loads(text)
                found._lines[line["mutant"]] = line
        return found

    def last_killer(self, mutant: Mutant) -> str:
        """Return the test that killed the mutant last time."""
        return self._lines.get(name(mutant), {}).get("killer", "")

    def outcome(self, mutant: Mutant) -> str:
        """Return the mutant's last outcome, even if something has changed since."""
        return self._lines.get(name(mutant), {}).get("outcome", "")

    def of_module(self, path: str) -> list[tuple[Mutant, Verdict]]:
        """Return the mutants of a module whose last verdict is about the present content of the
        module, with these verdicts."""
        found = []
        for mutant in mutants_of(path, (ROOT / path).read_text()):
            line = self._lines.get(name(mutant))
            if line is not None and line["module"] == content(path):
                found.append((mutant, Verdict(line["outcome"], line["killer"])))
        return found

    def still_true(self, mutant: Mutant, tests: Sequence[Seen]) -> Verdict | None:
        """Return the earlier verdict if nothing on which it depends has changed; otherwise None."""
        line = self._lines.get(name(mutant))
        if line is None or line["module"] != content(mutant.path):
            return None
        verdict = Verdict(line["outcome"], line["killer"])
        return verdict if line["proof"] == proof(verdict, tests) else None

    def add(self, mutant: Mutant, verdict: Verdict, tests: Sequence[Seen]) -> None:
        """Store a verdict."""
        line = {
            "mutant": name(mutant),
            "module": content(mutant.path),
            "outcome": verdict.outcome,
            "killer": verdict.killer,
            "proof": proof(verdict, tests),
        }
        self._lines[name(mutant)] = line
        FOLDER.mkdir(exist_ok=True)
        with VERDICTS.open("a") as stream:
            stream.write(json.dumps(line) + "\n")


def name(mutant: Mutant) -> str:
    """Return a name of a mutant that does not change when lines move."""
    return f"{mutant.path} {mutant.key}"


def load_tests() -> dict[str, tuple[dict[str, str], list[Seen]]]:
    """Return the recorded calls of each test file, with the checksums at the time of the
    recording."""
    if not TESTS.is_file():
        return {}
    return {
        file: (
            entry["contents"],
            [
                Seen(
                    one["test"],
                    one["cpu_s"],
                    frozenset((path, place) for path, place in one["places"]),
                    one["outcome"],
                )
                for one in entry["tests"]
            ],
        )
        for file, entry in json.loads(TESTS.read_text()).items()
    }


def save_tests(known: dict[str, tuple[dict[str, str], list[Seen]]]) -> None:
    """Store the recorded calls of each test file."""
    FOLDER.mkdir(exist_ok=True)
    entries = {
        file: {
            "contents": contents,
            "tests": [
                {
                    "test": seen.test,
                    "cpu_s": seen.cpu_s,
                    "places": sorted(seen.places),
                    "outcome": seen.outcome,
                }
                for seen in tests
            ],
        }
        for file, (contents, tests) in known.items()
    }
    beside = TESTS.with_suffix(".new")
    beside.write_text(json.dumps(entries))
    Path(beside).replace(TESTS)


def contents_behind(file: str, tests: Sequence[Seen]) -> dict[str, str]:
    """Return checksums of everything on which the recorded calls of a test file depend: the file
    itself, and the names of the functions in the files that it calls.

    If a changed function now calls another function, this is not detected until the next recording.
    Until then, a mutant of the called function may survive because a test is not selected. No
    mutant is wrongly counted as killed.
    """
    paths = {path for seen in tests for path, _ in seen.places}
    return {file: content(file)} | {path: functions_of(path) for path in sorted(paths)}


@cache
def functions_of(path: str) -> str:
    """Return the checksum of the names of all functions of a file."""
    here = ROOT / path
    nodes = ast.walk(ast.parse(here.read_text())) if here.is_file() else ()
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return checksum(*(node.name for node in nodes if isinstance(node, named)))


def is_fresh(file: str, contents: dict[str, str]) -> bool:
    """Return True if a test file's calls were recorded with the present contents."""
    return all(
        then == (content(path) if path == file else functions_of(path))
        for path, then in contents.items()
    )


__all__ = [
    "FOLDER",
    "Knowledge",
    "Verdicts",
    "contents_behind",
    "is_fresh",
    "load_tests",
    "name",
    "save_tests",
]
