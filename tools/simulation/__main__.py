"""Run schedules of a whole cluster, repeat one, or minimise one.

python -m tools.simulation run --count 300 --seed 1 --json out.json
python -m tools.simulation replay 17
python -m tools.simulation shrink 17
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.simulation import tally

if TYPE_CHECKING:
    from tools.simulation.stage import Result

TOLD_MAX: Final = 20
LIVES_MAX: Final = 40  # schedules per process, because each leaves some memory behind
HUNG_S: Final = 600.0  # seconds of real time; a schedule takes less than ten


def main() -> int:
    """Run the command line; return 1 if a promise of the product was violated."""
    _fix_hashes()
    parser = argparse.ArgumentParser(prog="python -m tools.simulation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="live many schedules")
    run.add_argument("--count", type=int, default=300)
    run.add_argument("--seed", type=int, default=1, help="of the first; the others follow")
    run.add_argument("--step", type=int, default=1, help="10 and --seed 5: only those with drops")
    run.add_argument("--jobs", type=int, default=1, help="processes side by side")
    run.add_argument("--json", type=Path, help="where to write what was found")
    run.add_argument("--append", type=Path, help="table of runs that gets a row")
    run.add_argument("--stop", action="store_true", help="end at the first violation")
    for name in ("replay", "shrink"):
        one = commands.add_parser(name)
        one.add_argument("seed", type=int)
        one.add_argument("--quiet", action="store_true", help="tell events and violations only")
    guards = commands.add_parser("guards", help="take guards out and see what is found")
    guards.add_argument(
        "--only", nargs="*", default=(), help="text of the rows of tools/mutants/guards.tsv"
    )
    guards.add_argument("--count", type=int, default=200, help="schedules for each change")
    guards.add_argument("--without", default="", help="text of the changes that are tried")
    guards.add_argument("--step", type=int, default=1, help="10: only those that are led")
    guards.add_argument("--seed", type=int, help="of the first; 5 and --step 10: those with drops")
    guards.add_argument("--cpu", type=float, default=60.0, help="seconds for each change")
    guards.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.command == "guards":
        from tools.simulation.guards import Trial
        from tools.simulation.guards import guards as tried  # nothing of the product before

        first = asked.step if asked.seed is None else asked.seed
        seeds = range(first, first + asked.step * asked.count, asked.step)
        return tried(asked.only, asked.without, Trial(seeds, asked.cpu), asked.json)
    if asked.command == "run":
        return _run(asked)
    return (
        _replay(asked.seed, is_quiet=asked.quiet) if asked.command == "replay" else _shrink(asked)
    )


def _fix_hashes() -> None:
    """Restart this program with a fixed hash seed, so that the order of sets is the same in every
    process."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        command = [sys.executable, "-m", "tools.simulation", *sys.argv[1:]]
        os.execv(sys.executable, command)  # noqa: S606 - this program again


def _run(asked: argparse.Namespace) -> int:
    began_s = time.monotonic()
    seeds = range(asked.seed, asked.seed + asked.step * asked.count, asked.step)
    commit = tally.commit_here() if asked.append is not None else ""
    counts: Counter[str] = Counter()
    broken: list[Result] = []
    steps: list[int] = []
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):  # the running schedule continues to its end
        signal.signal(number, lambda number, _: signals.append(number))
    with closing(lived(seeds, asked.jobs)) as results:
        for result in results:
            counts.update(result.counts)
            steps.append(result.step_count)
            if result.violations:
                broken.append(result)
                print(f"seed {result.seed}: {result.violations[0]}", flush=True)
            if signals or (asked.stop and broken):
                break
            if len(steps) % 100 == 0:
                took_s = time.monotonic() - began_s
                print(f"{len(steps)} of {asked.count} schedules, {took_s:.0f} s", flush=True)
    report = {
        "schedules": len(steps),
        "first_seed": asked.seed,
        "steps": sum(steps),
        "steps_min": min(steps),
        "seconds": round(time.monotonic() - began_s, 1),
        "cpu_seconds": round(time.process_time() + _children_cpu_s(), 1),
        "counts": dict(sorted(counts.items())),
        "violations": {str(one.seed): one.violations[:TOLD_MAX] for one in broken},
    }
    if asked.json is not None:
        asked.json.write_text(json.dumps(report, indent=1) + "\n")
    if asked.append is not None:
        row = tally.TallyRow(commit, seeds, len(steps), sum(steps), len(broken))
        tally.append(asked.append, row)
    print(
        f"{len(steps)} schedules of {min(steps)} steps and more, {sum(steps)} in all, "
        f"{report['seconds']} s: {len(broken)} with a violation"
    )
    if broken:
        print(f"make replay SEED={broken[0].seed}")
    return 1 if broken else 0


def _children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def lived(seeds: Sequence[int], jobs: int) -> "Generator[Result, None, None]":
    """Run the schedules of these seeds; yield their results. Each worker process is replaced after
    some schedules, because each schedule leaves some memory allocated.

    If a schedule does not end, yield this as its violation, and stop.
    """
    from tools.simulation.schedule import simulate
    from tools.simulation.stage import Result

    if jobs <= 1 and len(seeds) <= LIVES_MAX:
        yield from map(simulate, seeds)
        return
    fork = multiprocessing.get_context("fork")
    with fork.Pool(max(jobs, 1), initializer=_be_a_worker, maxtasksperchild=LIVES_MAX) as pool:
        results = pool.imap(simulate, seeds)
        for seed in seeds:
            try:
                yield results.next(timeout=HUNG_S)
            except multiprocessing.TimeoutError:
                yield Result(seed, violations=[f"it has not ended after {HUNG_S:g} s"])
                return  # and the processes are ended


def _be_a_worker() -> None:
    """Prepare a worker process: ignore SIGINT, which the first process handles, and end on
    SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _replay(seed: int, *, is_quiet: bool) -> int:
    from tools.simulation.schedule import simulate

    result = simulate(seed, traced=True)
    for line in result.trace:
        if not is_quiet or line.startswith(("==", "--")):
            print(line)
    return _tell(result)


def _shrink(asked: argparse.Namespace) -> int:
    from tools.simulation.schedule import drawn, simulate
    from tools.simulation.shrink import shrunk

    small = shrunk(asked.seed, drawn(asked.seed), tell=print)
    if small is None:
        print(f"seed {asked.seed}: nothing is violated")
        return 0
    result = simulate(asked.seed, small, traced=True)
    for line in result.trace:
        if not asked.quiet or line.startswith(("==", "--")):
            print(line)
    print(f"{len(small)} events are left")
    return _tell(result)


def _tell(result: "Result") -> int:
    print(f"seed {result.seed}: {result.step_count} steps, fingerprint {result.fingerprint}")
    for violation in result.violations[:TOLD_MAX]:
        print(f"VIOLATED {violation}")
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
