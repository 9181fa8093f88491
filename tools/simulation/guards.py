"""Guards of docs/INVARIANTS.md against the simulation: taken out check by check, what does it find?

    python -m tools.simulation guards --only agent/store/files --count 200

An error of the changed code that no caller may see (a TypeError, for instance) is no finding. Each
change is imported in a process of its own, before anything of the product is.
"""

import json
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tools.mutants import child, suite
from tools.mutants.invariants import DOCUMENT, ROW, Guard, checks_of
from tools.mutants.mutation import Mutant

CHECKS_MAX: Final = 6  # of one guard: those that surely take it out come first
BROKEN: Final = ("Stuck", "AssertionError")  # what broken promises inside the product raise
CPU_S: Final = 60.0  # for one change


@dataclass(frozen=True, slots=True)
class Found:
    """What the simulation saw without a check; `schedules` 0: nothing, in so many as were tried."""

    guard: str
    what: str
    without: str = ""
    schedules: int = 0
    violation: str = ""


def guards(only: Sequence[str], without: str, seeds: Sequence[int], out: Path | None) -> int:
    """Try the guards whose row has a text of `only`; return 1 where nothing was found without."""
    found: list[Found] = []
    for match in ROW.findall(DOCUMENT.read_text()):
        guard = Guard(*match)
        row = f"{guard.path}:{guard.function} {guard.what}"
        is_known = any(one.guard == f"{guard.path}:{guard.function}" for one in found)
        if not is_known and (not only or any(text in row for text in only)):
            found.append(_tried(guard, without, seeds))
            one = found[-1]
            told = f"{one.schedules} schedules, without `{one.without}`: {one.violation}"
            print(f"{one.guard} | {told if one.schedules else 'nothing found'}", flush=True)
            if out is not None:
                out.write_text(json.dumps([asdict(answer) for answer in found], indent=1) + "\n")
    return 0 if all(one.schedules for one in found) else 1


def _tried(guard: Guard, without: str, seeds: Sequence[int]) -> Found:
    name = f"{guard.path}:{guard.function}"
    for mutant in [one for one in checks_of(guard) if without in one.key][:CHECKS_MAX]:
        answer = _lived_without(mutant, seeds)
        if answer is not None:
            return Found(name, guard.what, mutant.key, *answer)
    return Found(name, guard.what)


def is_stumble(violation: str) -> bool:
    """Whether it only says that the changed code cannot go on."""
    return violation.startswith("no crash") and not any(word in violation for word in BROKEN)


def _lived_without(mutant: Mutant, seeds: Sequence[int]) -> tuple[int, str] | None:
    """Return after how many schedules a promise was broken, and which; None if none was."""
    source = (suite.ROOT / mutant.path).read_text()

    def live() -> tuple[int, str] | None:
        child.limit_time(CPU_S)
        signal.setitimer(signal.ITIMER_REAL, 4 * CPU_S)  # it may wait for ever
        sys.meta_path.insert(0, suite.ImportMutant(mutant, source))
        from tools.simulation.life import simulate

        for number, seed in enumerate(seeds, 1):
            for violation in simulate(seed).violations:
                if not is_stumble(violation):
                    return number, violation
        return None

    ended = child.run(live, memory_max_bytes=resource.RLIM_INFINITY)
    answer: tuple[int, str] | None = ended.result
    return answer
