"""Run a real cluster of processes under mixed load and faults, and judge it at the end.

    python -m tools.soak --minutes 60 --root /var/tmp/soak

Each agent is a process with two disks. Disks are loop devices if possible (as root), so that they
can lose power and fill up. Exits 1 if anything is wrong, and says what.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from tools.demo.stage import wait_until
from tools.soak.fault_injector import FaultInjector
from tools.soak.footprints import Watch
from tools.soak.load import Oracle, Worker
from tools.soak.site import Site, build
from tools.soak.verdict import Result, judge

WORKERS: Final = 3
SCM_SHARE: Final = 0.3  # of the time in which the control plane is also killed
JOIN_S: Final = 300.0


def main() -> int:
    """Run the test with the options of the command line; return the exit code."""
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that disks are released
    root = Path(tempfile.mkdtemp(prefix="suture-soak-", dir=options.root))
    site = build(root, agents=options.agents, volumes=2)
    result = Result(options.seed, options.minutes, options.agents, disks_of(site))
    try:
        soak(result, site)
    finally:
        site.close()
        if not result.wrong or options.remove:
            shutil.rmtree(root)
    print(table(result))
    for why in result.wrong:
        print(f"WRONG: {why}")
    if options.json:
        options.json.write_text(json.dumps(result.document(), indent=2) + "\n")
    return 1 if result.wrong else 0


def parsed() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of load and faults")
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--root", type=Path, default=None, help="where the disks are")
    parser.add_argument("--json", type=Path, default=None, help="where to write the result")
    parser.add_argument("--remove", action="store_true", help="remove all, also where it is wrong")
    return parser.parse_args()


def disks_of(site: Site) -> str:
    """Return a description of the disks."""
    if site.without_loops:
        return f"directories: no power cuts, no full disks ({site.without_loops[:200]})"
    return "ext4 on loop devices"


def soak(result: Result, site: Site) -> None:
    """Apply load and faults, then wait until the cluster is quiet and judge it; record the
    results."""
    wait_until(site.learn, "all datanodes register")
    oracle = Oracle(result.seed)
    loading, harming, watching = threading.Event(), threading.Event(), threading.Event()
    duration_s = result.minutes * 60
    workers = [Worker(oracle, site.cluster.scm.address, i, loading) for i in range(WORKERS)]
    chance = random.Random(result.seed)
    harms = FaultInjector(site, harming, chance, time.monotonic() + SCM_SHARE * duration_s)
    watch = Watch(site, watching)
    with ThreadPoolExecutor(WORKERS + 2) as pool:
        try:
            loads = [pool.submit(worker.run) for worker in workers]
            harm, watched = pool.submit(harms.run), pool.submit(watch.run)
            say_how_it_goes(oracle, harms, harm, time.monotonic() + duration_s)
            watch.loaded_until_s = time.monotonic()
            harming.set()
            result.wrong += ended([harm])
            loading.set()
            result.wrong += ended(loads)
            judge(result, site, oracle, harms, watch)
            watching.set()
            result.wrong += ended([watched])
        finally:  # otherwise the pool waits for threads that are never stopped
            for event in (harming, loading, watching):
                event.set()


def say_how_it_goes(oracle: Oracle, harms: FaultInjector, harm: Future[None], end_s: float) -> None:
    """Print a progress line every minute, until the time is over or the fault injector fails."""
    pause, said_count = threading.Event(), 0
    while (left_s := end_s - time.monotonic()) > 0 and not harm.done():
        pause.wait(min(60.0, left_s))
        print(f"{left_s / 60:5.1f} min left: {told(oracle, harms)}", flush=True)
        for why in (*oracle.wrong, *harms.told)[said_count:]:
            print(f"WRONG: {why}", flush=True)
        said_count = len(oracle.wrong) + len(harms.told)


def ended(futures: Sequence[Future[None]]) -> list[str]:
    """Wait until threads have ended; return a text for each thread that raised an exception or does
    not end."""
    wait(futures, JOIN_S)
    return [
        f"a thread does not end: {one}" if not one.done() else f"a thread died of {error!r}"
        for one in futures
        if not one.done() or (error := one.exception()) is not None
    ]


def told(oracle: Oracle, harms: FaultInjector) -> str:
    """Return the progress as text: counts of operations, faults and errors."""
    done = ", ".join(f"{count} {what}" for what, count in sorted(oracle.counts.items()))
    faults = ", ".join(f"{count} {what}" for what, count in sorted(harms.counts.items()))
    return f"{done}; {faults}; {len(oracle.wrong) + len(harms.told)} wrong"


def table(result: Result) -> str:
    """Return the result as a row of docs/SOAK.md."""
    rows = [
        ("load and faults", f"{result.minutes:g} min, seed {result.seed}, {result.agents} agents"),
        ("disks", result.disks),
        ("keys written", f"{result.keys_written:,} ({result.bytes_written / 1e6:,.0f} MB)"),
        ("operations", "; ".join(f"{w} {c:,}" for w, c in sorted(result.operations.items()))),
        ("faults", "; ".join(f"{what} {c:,}" for what, c in sorted(result.faults.items()))),
        ("quiet", f"after {result.quiet_after_s:.0f} s, {result.containers} containers"),
        ("read back", f"{result.keys_read_back:,} keys, {result.keys_lost} lost"),
        ("room", f"{result.room_bytes / 1e6:,.0f} MB for {result.stored_bytes / 1e6:,.0f} MB"),
    ]
    rows += [
        (
            one.name,
            f"lived {one.life_s / 60:.0f} min; {one.anon_bytes / 1e6:.0f} MB "
            f"({one.anon_bytes_per_h / 1e6:+.1f} MB/h), {one.descriptors} descriptors "
            f"({one.descriptors_per_h:+.1f}/h), {one.threads} threads "
            f"(at work {one.held_threads_per_h:+.1f}/h)",
        )
        for one in result.growths
    ]
    rows.append(("verdict", "all as it has to be" if not result.wrong else "see what is WRONG"))
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {said} |" for name, said in rows)])


if __name__ == "__main__":
    sys.exit(main())
