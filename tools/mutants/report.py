"""Writes the results: on the terminal, as JSON, and in two tables, with a reason for each
survivor."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.mutants.mutation import Mutant, mutants_of
from tools.mutants.suite import ROOT, Verdict

RESULTS = Path(__file__).with_name("results.tsv")
SURVIVORS = Path(__file__).with_name("survivors.tsv")
BOUND_PERCENT = 90
OUTCOMES = ("killed", "timed out", "survived")
UNEXPLAINED = "no reason yet"
Results = Mapping[str, Sequence[tuple[Mutant, Verdict]]]
Counts = tuple[int, int, int]
Tried = tuple[int, Counts]
"""The number of a module's changes, and the outcomes of the changes that were tried."""


def counts_of(found: Sequence[tuple[Mutant, Verdict]]) -> Counts:
    """Return the numbers of mutants that were killed, timed out, and survived."""
    outcomes = [verdict.outcome for _, verdict in found]
    killed, late, survived = (outcomes.count(outcome) for outcome in OUTCOMES)
    return killed, late, survived


def percent(counts: Counts) -> float:
    """Return the percentage of mutants that the tests detected. A mutant whose tests timed out
    counts as detected."""
    return 100 * (counts[0] + counts[1]) / (sum(counts) or 1)


def as_json(results: Results) -> dict[str, Any]:
    """Return all verdicts as a JSON document, by module."""
    return {
        path: [
            {
                "line": mutant.line,
                "change": mutant.key,
                "outcome": verdict.outcome,
                "killer": verdict.killer,
            }
            for mutant, verdict in found
        ]
        for path, found in results.items()
    }


def show(results: Results, reasons: Mapping[tuple[str, str], str]) -> int:
    """Print the result. Return 1 if a module is below the required percentage, or a survivor has no
    reason."""
    code = 0
    print(f"{'module':<32} {'killed':>8} {'timed out':>10} {'survived':>9}")
    for path, found in sorted(results.items()):
        counts = counts_of(found)
        share = percent(counts)
        print(f"{path:<32} {counts[0]:>8} {counts[1]:>10} {counts[2]:>9} {share:>7.1f} %")
        code |= share < BOUND_PERCENT
    for path, found in sorted(results.items()):
        for mutant, verdict in found:
            if verdict.outcome == "survived":
                reason = reasons.get((path, mutant.key), UNEXPLAINED)
                code |= reason == UNEXPLAINED
                print(f"{path}:{mutant.line}: {mutant.key}  ({reason})")
    return code


@dataclass(frozen=True, slots=True)
class Record:
    """The stored results of each module: the counts, and a reason for each survivor."""

    counts: Mapping[str, Tried]
    reasons: Mapping[tuple[str, str], str]

    @classmethod
    def load(cls) -> "Record":
        """Read both tables."""
        counts = {
            path: (int(change_count), (int(killed), int(late), int(survived)))
            for path, change_count, killed, late, survived in _rows(RESULTS)
        }
        reasons = {(path, change): reason for path, change, reason in _rows(SURVIVORS)}
        return cls(counts, reasons)

    def with_results(self, results: Results) -> "Record":
        """Return the record with the modules of a run replaced. The reasons of survivors are
        kept."""
        counts = dict(self.counts)
        for path, found in results.items():
            change_count = len(mutants_of(path, (ROOT / path).read_text()))
            counts[path] = (change_count, counts_of(found))
        reasons = {key: text for key, text in self.reasons.items() if key[0] not in results}
        for path, found in results.items():
            for mutant, verdict in found:
                if verdict.outcome == "survived":
                    key = (path, mutant.key)
                    reasons[key] = self.reasons.get(key, UNEXPLAINED)
        return Record(counts, reasons)

    def save(self) -> None:
        """Write both tables."""
        counts = [(path, count, *of) for path, (count, of) in sorted(self.counts.items())]
        _write(RESULTS, ("module", "changes", "killed", "timed_out", "survived"), counts)
        by_module = sorted(self.reasons.items(), key=lambda item: item[0][0])
        reasons = [(path, change, reason) for (path, change), reason in by_module]
        _write(SURVIVORS, ("module", "change", "reason"), reasons)


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file, csv.excel_tab))[1:]


def _write(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, csv.excel_tab, lineterminator="\n").writerows([head, *rows])
