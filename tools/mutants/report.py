"""The result: on the screen, as JSON, and in docs/MUTANTS.md with a reason beside each survivor."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.mutants.mutation import Mutant, mutants_of
from tools.mutants.suite import ROOT, Verdict

DOCUMENT = ROOT / "docs" / "MUTANTS.md"
BOUND_PERCENT = 90
OUTCOMES = ("killed", "timed out", "survived")
UNEXPLAINED = "no reason yet"
TABLE_ROW = re.compile(
    r"^\| `([\w/.]+\.py)` \| (\d+) \| \d+ \| (\d+) \| (\d+) \| (\d+) \| [\d.]+ % \|$"
)
SURVIVOR_ROW = re.compile(r"^\| `` (.+?) `` \| (.+) \|$")
SURVIVORS_OF = re.compile(r"^### `([\w/.]+\.py)`$")

Results = Mapping[str, Sequence[tuple[Mutant, Verdict]]]
Counts = tuple[int, int, int]
Tried = tuple[int, Counts]
"""How many changes a module has, and the outcomes of those that were tried."""


def counts_of(found: Sequence[tuple[Mutant, Verdict]]) -> Counts:
    """Return how many were killed, timed out, survived."""
    outcomes = [verdict.outcome for _, verdict in found]
    killed, late, survived = (outcomes.count(outcome) for outcome in OUTCOMES)
    return killed, late, survived


def percent(counts: Counts) -> float:
    """Return the share that the tests noticed; a test that never ends is noticed, too."""
    return 100 * (counts[0] + counts[1]) / (sum(counts) or 1)


def as_json(results: Results) -> dict[str, Any]:
    """Return every verdict."""
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
    """Print the result; return 1 if a module is below the bound or a survivor has no reason."""
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
                reason = reasons.get((path, escaped(mutant.key)), UNEXPLAINED)
                code |= reason == UNEXPLAINED
                print(f"{path}:{mutant.line}: {mutant.key}  ({reason})")
    return code


def escaped(text: str) -> str:
    """Return the text as it stands in a cell of a table."""
    return text.replace("|", "\\|").replace("``", "` `")


@dataclass(frozen=True, slots=True)
class Document:
    """docs/MUTANTS.md: its prose, the counts of each module, the reason for each survivor."""

    prose: str
    counts: Mapping[str, Tried]
    reasons: Mapping[tuple[str, str], str]

    @classmethod
    def load(cls) -> "Document":
        """Read the document."""
        text = DOCUMENT.read_text() if DOCUMENT.is_file() else "# Mutants\n\n## Result\n"
        counts: dict[str, Tried] = {}
        reasons: dict[tuple[str, str], str] = {}
        path = ""
        for line in text.splitlines():
            if match := TABLE_ROW.match(line):
                name, *numbers = match.groups()
                change_count, killed, late, survived = map(int, numbers)
                counts[name] = (change_count, (killed, late, survived))
            elif match := SURVIVORS_OF.match(line):
                path = match[1]
            elif path and (match := SURVIVOR_ROW.match(line)):
                reasons[path, match[1]] = match[2]
        return cls(text.split("## Result\n")[0], counts, reasons)

    def with_results(self, results: Results) -> "Document":
        """Return the document with the modules of a run replaced; reasons stay."""
        counts = dict(self.counts)
        for path, found in results.items():
            change_count = len(mutants_of(path, (ROOT / path).read_text()))
            counts[path] = (change_count, counts_of(found))
        reasons = {key: text for key, text in self.reasons.items() if key[0] not in results}
        for path, found in results.items():
            for mutant, verdict in found:
                if verdict.outcome == "survived":
                    key = (path, escaped(mutant.key))
                    reasons[key] = self.reasons.get(key, UNEXPLAINED)
        return Document(self.prose, counts, reasons)

    def save(self) -> None:
        """Write the document."""
        DOCUMENT.write_text("\n".join(self._lines()) + "\n")

    def _lines(self) -> list[str]:
        lines = [f"{self.prose}## Result", ""]
        lines += ["| module | changes | tried | killed | timed out | survived | noticed |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for path, (change_count, counts) in sorted(self.counts.items()):
            numbers = " | ".join(map(str, (change_count, sum(counts), *counts)))
            lines.append(f"| `{path}` | {numbers} | {percent(counts):.1f} % |")
        lines += ["", "## What survives, and why"]
        for path in sorted({path for path, _ in self.reasons}):
            lines += [
                "",
                f"### `{path}`",
                "",
                "| change | why no test can or need notice |",
                "|---|---|",
            ]
            lines += [
                f"| `` {change} `` | {reason} |"
                for (module, change), reason in self.reasons.items()
                if module == path
            ]
        return lines
