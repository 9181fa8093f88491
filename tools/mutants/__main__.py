"""Mutate the pure modules, one small change at a time, and check that a test fails.

    python -m tools.mutants                      all of them
    python -m tools.mutants merkle scm.cluster.commands.command_limits  a group, or a module
    python -m tools.mutants invariants           each guard of guards.tsv against its test

Prints killed, timed out and survived for each module, then the survivors. `--write` stores all
results of these modules in results.tsv and survivors.tsv, with a reason beside each survivor. Exit
code 1 if less than 90 % of a module are killed, or a survivor has no reason; 2 if a name is
unknown.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools.mutants import child, invariants, report, suite
from tools.mutants.groups import Group, chosen
from tools.mutants.mutation import Mutant, mutants_of
from tools.mutants.suite import ROOT, Imports, Knowledge, Place, Seen, Verdict
from tools.mutants.verdicts import (
    Verdicts,
    contents_behind,
    is_fresh,
    load_tests,
    save_tests,
)


def main(words: Sequence[str] | None = None) -> int:
    """Try the requested mutants."""
    options = parse(words)
    if options.names == ["invariants"]:
        return invariants.main(options.only, Path(options.json) if options.json else None)
    try:
        groups = chosen(options.names)
    except LookupError as error:
        print(error.args[0], file=sys.stderr)
        return 2
    suite.preload()
    results: dict[str, list[tuple[Mutant, Verdict]]] = {}
    with tempfile.TemporaryDirectory(prefix="suture-mutants-") as scratch:
        for group, paths in groups:
            results.update(Trials(group, Path(scratch) / "tests").run(picked(paths, options)))
    kept = report.Record.load()
    if options.write:
        found = Verdicts.load()
        kept = kept.with_results({path: found.of_module(path) for path in results})
        kept.save()
    if options.json:
        Path(options.json).write_text(json.dumps(report.as_json(results), indent=1) + "\n")
    return report.show(results, kept.reasons)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a group or a module")
    parser.add_argument("--since", metavar="REVISION", help="only lines changed since then")
    parser.add_argument("--again", action="store_true", help="only what survived last time")
    parser.add_argument("--sample", type=int, metavar="N", help="so many of each module")
    parser.add_argument("--seed", type=int, default=0, help="which ones; default 0")
    parser.add_argument("--json", metavar="FILE", help="write every verdict")
    parser.add_argument("--write", action="store_true", help="update results.tsv and survivors.tsv")
    parser.add_argument("--only", default="", metavar="TEXT", help="invariants: guards with it")
    return parser.parse_args(words)


def picked(paths: Sequence[str], options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants of modules, or those of changed lines, or a sample."""
    found: list[Mutant] = []
    earlier = Verdicts.load()
    for path in paths:
        mutants = mutants_of(path, (ROOT / path).read_text())
        if options.since:
            lines = changed_lines(path, options.since)
            mutants = [mutant for mutant in mutants if mutant.line in lines]
        if options.again:
            mutants = [mutant for mutant in mutants if earlier.outcome(mutant) == "survived"]
        if options.sample is not None and options.sample < len(mutants):
            some = random.Random(options.seed).sample(mutants, options.sample)  # noqa: S311  no secret
            mutants = sorted(some, key=lambda mutant: mutant.index)
        found += mutants
    return found


def changed_lines(path: str, revision: str) -> set[int]:
    """Return the lines of a file that differ from a revision."""
    text = subprocess.run(
        ("git", "diff", "-U0", revision, "--", path),  # noqa: S607  whichever git is there
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    lines: set[int] = set()
    for first, count in re.findall(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", text, re.MULTILINE):
        lines |= set(range(int(first), int(first) + int(count or 1)))
    return lines


class Trials:
    """Runs the mutants of one group against the tests of that group."""

    def __init__(self, group: Group, scratch: Path) -> None:
        self._group = group
        self._scratch = scratch
        self._verdicts = Verdicts.load()
        self._sources: dict[str, str] = {}
        self._functions: list[types.FunctionType] = []
        self._killers: dict[Place, list[str]] = {}
        self._progress = Progress(group.name)

    def run(self, mutants: list[Mutant]) -> dict[str, list[tuple[Mutant, Verdict]]]:
        """Return the verdict on each mutant, by module."""
        self._sources = {mutant.path: (ROOT / mutant.path).read_text() for mutant in mutants}
        self._progress.expect(len(mutants))
        files = self._group.test_files()
        ended = child.run(
            lambda: suite.in_session(
                files,
                self._scratch,
                lambda items, imports: self._collected(items, imports, mutants),
            ),
            is_quiet=False,
        )
        if ended.result is None:
            raise SystemExit(f"{self._group.name}: {ended.fault}")
        known, found = ended.result
        self._verdicts = Verdicts.load()
        by_module: dict[str, list[tuple[Mutant, Verdict]]] = {}
        for mutant in mutants:
            verdict = found.get((mutant.path, mutant.index)) or self._imported(mutant, known)
            by_module.setdefault(mutant.path, []).append((mutant, verdict))
        self._progress.end()
        return by_module

    def _collected(
        self, items: list[Any], imports: Imports, mutants: list[Mutant]
    ) -> tuple[Knowledge, dict[tuple[str, int], Verdict]]:
        """Try the mutants that can be applied to loaded functions. Runs in the pytest session."""
        known = self._know(items, imports)
        by_name = {item.nodeid: item for item in items}
        self._functions = suite.functions_loaded()
        found: dict[tuple[str, int], Verdict] = {}
        for mutant in mutants:
            if mutant.is_in_function:
                verdict = self._loaded(mutant, known, by_name)
                if verdict is not None:
                    found[mutant.path, mutant.index] = verdict
        return known, found

    def _know(self, items: list[Any], imports: Imports) -> Knowledge:
        """Record which functions each test calls, unless this is known."""
        by_file: dict[str, list[Any]] = {}
        for item in items:
            by_file.setdefault(item.nodeid.split("::")[0], []).append(item)
        kept = load_tests()
        for file, inside in by_file.items():
            if file in kept and is_fresh(file, kept[file][0]):
                continue
            self._progress.say(f"looks at {file}")
            ended = child.run(partial(suite.look, inside))
            if ended.result is None:
                raise RuntimeError(f"{file}: {ended.fault}")
            red = [seen.test for seen in ended.result if seen.outcome == "failed"]
            if red:
                raise RuntimeError(f"red without any change: {', '.join(red)}")
            kept[file] = (contents_behind(file, ended.result), ended.result)
            save_tests(kept)
        tests = {seen.test: seen for file in by_file for seen in kept[file][1]}
        return Knowledge(tests, imports)

    def _order(self, mutant: Mutant, known: Knowledge) -> list[Seen]:
        """Return the tests of a mutant in order: tests that earlier killed this mutant, or other
        mutants of its function, come first."""
        group = self._group
        tests = suite.chosen_tests(
            mutant, known, group.package, shared=group.shared, own_budget_s=group.own_budget_s
        )
        killer = self._verdicts.last_killer(mutant)
        others = self._killers.get((mutant.path, mutant.place), [])
        return sorted(
            tests,
            key=lambda seen: (
                seen.test != killer,
                others.index(seen.test) if seen.test in others else len(others),
            ),
        )

    def _loaded(self, mutant: Mutant, known: Knowledge, items: dict[str, Any]) -> Verdict | None:
        """Try a mutant in the loaded functions. Return None if it must be imported, because no test
        that can run in this way detects it."""
        tests = self._order(mutant, known)
        earlier = self._verdicts.still_true(mutant, tests)
        if earlier is not None:
            return self._progress.add(mutant, earlier)
        place = (mutant.path, mutant.place)
        spared = [seen for seen in tests if known.imports.spare(place, file_of(seen))]
        if not tests:
            return self._judge(mutant, child.Ended(Verdict("survived")), tests)
        if not spared:
            return None

        def trial() -> Verdict:
            suite.new_code(mutant, self._sources[mutant.path], self._functions)
            times_s = {seen.test: seen.cpu_s for seen in spared}
            return suite.run_tests([items[seen.test] for seen in spared], times_s)

        suite.prepared(str(ROOT / mutant.path), self._sources[mutant.path])
        ended = child.run(trial)
        if "LookupError" in ended.fault:
            return None
        if ended.result == Verdict("survived", tests=len(spared)) and len(spared) < len(tests):
            known.asked.add(place)
            return None
        return self._judge(mutant, ended, tests)

    def _imported(self, mutant: Mutant, known: Knowledge) -> Verdict:
        """Try a mutant by importing everything with it."""
        tests = self._order(mutant, known)
        earlier = self._verdicts.still_true(mutant, tests)
        if earlier is not None:
            return self._progress.add(mutant, earlier)
        place = (mutant.path, mutant.place)
        left = [
            seen
            for seen in tests
            if place not in known.asked or not known.imports.spare(place, file_of(seen))
        ]
        times_s = {seen.test: seen.cpu_s for seen in left}
        files = list(dict.fromkeys(map(file_of, left)))

        def work(items: list[Any], _: object) -> Verdict:
            by_name = {item.nodeid: item for item in items}
            present = [by_name[seen.test] for seen in left if seen.test in by_name]
            if len(present) < len(left):  # a shortened table of test cases counts as detected
                return Verdict("killed", "", len(present))
            return suite.run_tests(present, times_s)

        def trial() -> Verdict:
            child.limit_time(30)
            sys.meta_path.insert(0, suite.ImportMutant(mutant, self._sources[mutant.path]))
            try:
                verdict = suite.in_session(files, self._scratch, work)
            except (RuntimeError, SystemExit):
                return Verdict("killed")
            assert isinstance(verdict, Verdict)
            return verdict

        if not files:
            return self._judge(mutant, child.Ended(Verdict("survived")), tests)
        return self._judge(mutant, child.run(trial), tests)

    def _judge(self, mutant: Mutant, ended: child.Ended, tests: Sequence[Seen]) -> Verdict:
        """Convert the end of a trial to a verdict and store it."""
        verdict = Verdict("timed out") if ended.timed_out else ended.result
        if verdict is None:  # the change crashed the process or exhausted its memory
            verdict = Verdict("killed")
        self._verdicts.add(mutant, verdict, tests)
        if verdict.killer:
            killers = self._killers.setdefault((mutant.path, mutant.place), [])
            killers[:] = [verdict.killer, *(test for test in killers if test != verdict.killer)]
        return self._progress.add(mutant, verdict)


def file_of(seen: Seen) -> str:
    """Return the file of a test."""
    return seen.test.split("::")[0]


class Progress:
    """A progress line on standard error."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._expected = 0
        self._begun = time.monotonic()
        self._count = 0
        self._said = 0.0

    def expect(self, count: int) -> None:
        """Set the expected number."""
        self._expected = count

    def say(self, text: str) -> None:
        """Print the current activity."""
        print(f"{self._name}: {text}", file=sys.stderr, flush=True)

    def add(self, mutant: Mutant, verdict: Verdict) -> Verdict:
        """Count a verdict and return it."""
        self._count += 1
        if verdict.outcome == "survived":
            self.say(f"survived {mutant.path}:{mutant.line} {mutant.key}")
        if time.monotonic() - self._said > 10:
            self._said = time.monotonic()
            self.say(f"{self._count} of {self._expected}, {self._said - self._begun:.0f} s")
        return verdict

    def end(self) -> None:
        """Print the duration."""
        self.say(f"{self._expected} mutants, {time.monotonic() - self._begun:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
