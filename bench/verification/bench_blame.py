"""Checks that the blame analysis names the known culprits. Seeded clusters, as
`tests/support/verification/culprits.py` draws them, go through the judge, the vote count and the
statistics.

In innocent clusters, nothing is damaged, or everything equally; no suspect may be named. In nearly
all other clusters, exactly the culprits must be named. Precision and recall of each scenario are
shown, too; docs/SPARK.md has them as a table.

    BENCH_BLAME_SEEDS=10 make bench NAME=blame     fewer clusters than a hundred of each kind
"""

import os
import sys
from collections.abc import Callable
from typing import Final

from bench.measure import Measure, at_least, at_most
from tests.support.verification import culprits
from tests.support.verification.culprits import Cluster, Outcome, outcome

SEEDS: Final = int(os.environ.get("BENCH_BLAME_SEEDS", "100"))
INNOCENT: Final[dict[str, Callable[[int], Cluster]]] = {
    "clean": culprits.clean,
    "even": culprits.even,
    "uneven": culprits.uneven,
    "crowded": culprits.crowded,
}
GUILTY: Final[dict[str, Callable[[int], Cluster]]] = {
    "few": culprits.few,
    "many": culprits.many,
    "nested": culprits.nested,
    "outvoted": culprits.outvoted,
}
EXACT_MIN: Final = 95.0


def measures() -> list[Measure]:
    """Measure how many innocent members were named, and how exactly the culprits were named."""
    found: list[Measure] = []
    for name, draw in INNOCENT.items():
        accused = sum(len(one.named) for one in _outcomes(name, draw))
        found.append(
            at_most(f"blame_{name}", accused, "innocents", 0, compared_with=f"{SEEDS} clusters")
        )
    exact = 0
    for name, draw in GUILTY.items():
        outcomes = _outcomes(name, draw)
        exact += sum(one.is_exact for one in outcomes)
        named = sum(len(one.named) for one in outcomes)
        guilty = sum(len(one.guilty) for one in outcomes)
        both = sum(len(one.named & one.guilty) for one in outcomes)
        told = f"{guilty:,} culprits"
        found.append(Measure(f"blame_{name}_precision", 100 * both / max(named, 1), "%", told))
        found.append(Measure(f"blame_{name}_recall", 100 * both / max(guilty, 1), "%", told))
    count = SEEDS * len(GUILTY)
    found.append(
        at_least("blame_exact", 100 * exact / count, "%", EXACT_MIN, compared_with=f"{count} drawn")
    )
    return found


def _outcomes(name: str, draw: Callable[[int], Cluster]) -> list[Outcome]:
    found = []
    for seed in range(SEEDS):
        one = outcome(draw(seed))
        found.append(one)
        if not one.is_exact:
            missed, extra = sorted(one.guilty - one.named), sorted(one.named - one.guilty)
            print(f"{name}, seed {seed}: missed {missed}, named too {extra}", file=sys.stderr)
    return found
