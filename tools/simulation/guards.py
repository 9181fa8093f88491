"""Checks whether the simulation finds the removal of guards in tools/mutants/guards.tsv.

    python -m tools.simulation guards --only agent/store/files --count 200

If the changed code only crashes (with a TypeError, for instance), this does not count as found.
Each change is imported in a separate process, before any other module of the product.
"""

import json
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tools.mutants import child, suite
from tools.mutants.invariants import Guard, checks_of, guards_listed
from tools.mutants.mutation import Mutant

CHECKS_MAX: Final = 6  # changes per guard; those that surely remove it come first
SCHEDULE_CPU_S: Final = 60.0  # a schedule takes one second: a longer one never ends
BUSY: Final = 50  # times the CPU time: a slower one is blocked
BROKEN: Final = ("Deadlock", "AssertionError")  # raised by broken promises inside the product


@dataclass(frozen=True, slots=True)
class Found:
    """The simulation's result for a guard with a removed check. `schedules` is the number of
    schedules until a violation. If it is 0, at least `lived` schedules had no violation."""

    guard: str
    what: str
    without: str = ""
    schedules: int = 0
    violation: str = ""
    lived: int = 0


class SchedulesNotRun(Exception):
    """Raised if schedules could not run at all, so that "nothing found" has no meaning."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The seeds to try for each change, and the CPU time for them."""

    seeds: Sequence[int]
    cpu_s: float


def guards(only: Sequence[str], without: str, trial: Trial, out: Path | None) -> int:
    """Try the guards whose row contains a text of `only`. Return 1 if the simulation finds no
    violation for a guard that is removed.

    Raise SchedulesNotRun if no schedule could run.
    """
    found: list[Found] = []
    for guard in guards_listed():
        row = f"{guard.path}:{guard.function} {guard.what}"
        is_known = any(one.guard == f"{guard.path}:{guard.function}" for one in found)
        if not is_known and (not only or any(text in row for text in only)):
            found.append(_tried(guard, without, trial))
            one = found[-1]
            told = f"{one.schedules} schedules, without `{one.without}`: {one.violation}"
            nothing = f"nothing found in {one.lived} schedules"
            print(f"{one.guard} | {told if one.schedules else nothing}", flush=True)
            if out is not None:
                out.write_text(json.dumps([asdict(answer) for answer in found], indent=1) + "\n")
    return 0 if all(one.schedules for one in found) else 1


def _tried(guard: Guard, without: str, trial: Trial) -> Found:
    """Remove the checks of a guard one by one, until the simulation finds a violation.

    A change that cannot be imported, or that does not end, is skipped. If all changes are skipped,
    raise SchedulesNotRun, because there is probably another cause.
    """
    name = f"{guard.path}:{guard.function}"
    mutants = [one for one in checks_of(guard) if without in one.key][:CHECKS_MAX]
    faults: list[SchedulesNotRun] = []
    lived = [len(trial.seeds)]
    for mutant in mutants:
        try:
            schedules, violation = _lived_without(mutant, trial)
        except SchedulesNotRun as fault:
            faults.append(fault)
            continue
        if violation:
            return Found(name, guard.what, mutant.key, schedules, violation)
        lived.append(schedules)
    if mutants and len(faults) == len(mutants):
        raise faults[0]
    return Found(name, guard.what, lived=min(lived) if mutants else 0)


def is_stumble(violation: str) -> bool:
    """Return True if a violation only says that the changed code crashed."""
    return violation.startswith("no crash") and not any(word in violation for word in BROKEN)


def _lived_without(mutant: Mutant, trial: Trial) -> tuple[int, str]:
    """Return the number of schedules until a promise was violated, and the violation; "" if none
    was violated.

    Raise SchedulesNotRun if no schedule could run. The limit on real time is long, because on a
    busy machine one second of CPU time may take many seconds.
    """
    source = (suite.ROOT / mutant.path).read_text()

    def live() -> tuple[int, str]:
        child.limit_time(trial.cpu_s + SCHEDULE_CPU_S)
        signal.setitimer(signal.ITIMER_REAL, BUSY * (trial.cpu_s + SCHEDULE_CPU_S))
        sys.meta_path.insert(0, suite.ImportMutant(mutant, source))
        from tools.simulation.schedule import simulate

        begun_s = time.process_time()
        for number, seed in enumerate(trial.seeds, 1):
            if time.process_time() - begun_s > trial.cpu_s:
                return number - 1, ""
            for violation in simulate(seed).violations:
                if not is_stumble(violation):
                    return number, violation
        return len(trial.seeds), ""

    ended = child.run(live, memory_max_bytes=resource.RLIM_INFINITY)
    if ended.result is None:
        raise SchedulesNotRun(f"without `{mutant.key}`: {ended.fault or 'it did not end'}")
    answer: tuple[int, str] = ended.result
    return answer
