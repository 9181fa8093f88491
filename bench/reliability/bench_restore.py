"""Checks that a restored control plane loses nothing: work, backup, work, kill, restore, read.

Fifty runs at random moments, on clusters of five agents, all in separate processes
(`restore_drill.py` has the steps and the definition of a loss). Each restore is on the cluster that
the one before left, ten per cluster; one of five is from an older backup, which may have been
restored before. The seed of each run is printed. A key that was deleted after the backup, with its
whole container, exists again and cannot be read: that is counted, and documented in
docs/operations/restore.md.

    BENCH_RESTORE_COUNT=5 make bench NAME=restore     fewer of them
    BENCH_RESTORE_SEED=7 make bench NAME=restore      other ones
"""

import os
import tempfile
from pathlib import Path
from typing import Final

from bench.measure import Measure, at_most
from bench.reliability.restore_drill import Drill, Verdict

COUNT: Final = int(os.environ.get("BENCH_RESTORE_COUNT", "50"))
SEED: Final = int(os.environ.get("BENCH_RESTORE_SEED", "1"))
PER_CLUSTER: Final = 10


def measures() -> list[Measure]:
    """Restore the control plane repeatedly; count the lost keys."""
    verdicts: list[Verdict] = []
    while len(verdicts) < COUNT:
        first = SEED * 1_000 + len(verdicts)
        with (
            tempfile.TemporaryDirectory(prefix="suture-bench-") as directory,
            Drill(Path(directory), first).running() as drill,
        ):
            for seed in range(first, first + min(PER_CLUSTER, COUNT - len(verdicts))):
                verdicts.append(verdict := drill.once(seed))
                print(
                    f"seed {seed}: {verdict.key_count} keys, {verdict.since_count} since the "
                    f"backup, lost {verdict.lost}, unreadable {verdict.unreadable}",
                    flush=True,
                )
    return [
        Measure("restore: drills", len(verdicts), "times"),
        Measure("restore: keys read back", sum(v.key_count for v in verdicts), "keys"),
        Measure(
            "restore: of these put since the backup", sum(v.since_count for v in verdicts), "keys"
        ),
        at_most("restore: acknowledged keys lost", sum(len(v.lost) for v in verdicts), "keys", 0),
        Measure(
            "restore: deleted keys there again, but not readable",
            sum(len(v.unreadable) for v in verdicts),
            "keys",
        ),
        at_most("restore: block ids given out twice", len(verdicts[-1].reused), "ids", 0),
    ]
