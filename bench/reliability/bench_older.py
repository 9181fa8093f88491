"""Checks that an older state of the control plane, or a second one on a copy, deletes nothing.

A hundred runs at random moments, on clusters of five agents, all in separate processes
(`older_drill.py` has the steps). In half of them a copy of the state made under writes is put back;
in the other half two control planes run on copies of one state. An acknowledged key that cannot be
read after the recovery is lost. The seed of each run is printed.

    BENCH_OLDER_COUNT=5 make bench NAME=older     fewer of them
    BENCH_OLDER_SEED=7 make bench NAME=older      other ones
"""

import os
import tempfile
from pathlib import Path
from typing import Final

from bench.measure import Measure, at_most
from bench.reliability.older_drill import OlderDrill
from bench.reliability.restore_drill import Verdict

COUNT: Final = int(os.environ.get("BENCH_OLDER_COUNT", "100"))
SEED: Final = int(os.environ.get("BENCH_OLDER_SEED", "1"))
PER_CLUSTER: Final = 10


def measures() -> list[Measure]:
    """Restart control planes on older states, and run two on copies of one state; count the lost
    keys."""
    verdicts: list[Verdict] = []
    while len(verdicts) < COUNT:
        first = SEED * 1_000 + len(verdicts)
        with (
            tempfile.TemporaryDirectory(prefix="suture-bench-") as directory,
            OlderDrill(Path(directory), first).running() as drill,
        ):
            for seed in range(first, first + min(PER_CLUSTER, COUNT - len(verdicts))):
                harm = drill.fork if seed % 2 else drill.put_back
                verdicts.append(verdict := harm(seed))
                print(
                    f"seed {seed} {harm.__name__}: {verdict.key_count} keys, {verdict.since_count} "
                    f"of them written beside it, lost {verdict.lost}",
                    flush=True,
                )
    return [
        Measure("older: drills", len(verdicts), "times"),
        Measure("older: keys read back", sum(v.key_count for v in verdicts), "keys"),
        Measure("older: of these written beside it", sum(v.since_count for v in verdicts), "keys"),
        at_most("older: acknowledged keys lost", sum(len(v.lost) for v in verdicts), "keys", 0),
    ]
