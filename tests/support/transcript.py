"""Golden transcripts: scenarios as text, each with the answer of the code.

    # Why this scenario exists.
    statement of the scenario
    another one
    ----
    what the code answers

Blank lines separate scenarios. `--rewrite-golden` writes the answers again.
"""

from collections.abc import Callable
from pathlib import Path

SEPARATOR = "----"


def check_transcript(path: Path, answer: Callable[[list[str]], list[str]], *, rewrite: bool) -> int:
    """Compare every answer in the file with the code's answer; return the number of scenarios."""
    written = path.read_text()
    scenarios = [part for part in written.strip().split("\n\n") if part.strip()]
    told = "\n\n".join(_answered(scenario, answer) for scenario in scenarios) + "\n"
    if rewrite:
        path.write_text(told)
    assert written == told or rewrite, f"{path}: the code says otherwise:\n\n{told}"
    return len(scenarios)


def _answered(scenario: str, answer: Callable[[list[str]], list[str]]) -> str:
    asked = scenario.split(f"\n{SEPARATOR}", 1)[0].strip("\n")
    statements = [line for line in asked.splitlines() if line and not line.startswith("#")]
    return "\n".join([asked, SEPARATOR, *answer(statements)])
