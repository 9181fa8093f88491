"""Damages one of four volumes of a real agent by seeded faults, and checks the other three.

Each case damages one volume. A file or directory becomes unreadable (EIO), cut, garbage, huge and
sparse, a directory, a link or a pipe, or is removed; or the volume is not mounted. The place is the
index, VERSION, a descriptor, a tree, a block file, or a directory. The agent is stopped or in use.
The benchmark prints a table of kinds and places to stderr. EIO needs root and mkfs.btrfs; without
them, these cases are omitted.

    SUTURE_BENCH_FAULTS     another number of cases
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable

from bench.measure import Measure, at_least, at_most
from tests.support.faults.bad_volumes import SERVED_MAX_S, FourVolumes, Outcome
from tests.support.faults.eio_disk import why_not
from tests.support.faults.volume_faults import Kind, Place, cases
from tests.support.storage.stores import private_directory

COUNT = int(os.environ.get("SUTURE_BENCH_FAULTS", "300"))
WIDTH = 30


def measures() -> list[Measure]:
    """Measure how many cases had the required result, and how long the other volumes were
    unavailable."""
    outcomes: list[Outcome] = []
    with private_directory() as root, FourVolumes(root) as world:
        for case in cases(COUNT, with_eio=not why_not()):
            outcomes.append(world.run(case))
            tell(f"{case}: {outcomes[-1]}" if outcomes[-1].faults else "", len(outcomes))
        chunk_count = world.read_all()
    tell(table(outcomes), len(outcomes))
    ends = Counter(outcome.end for outcome in outcomes)
    restarts = Counter(outcome.restarts for outcome in outcomes)
    return [
        at_least("faults", len(outcomes), "faults", COUNT),
        at_most("faults with anything amiss", sum(bool(o.faults) for o in outcomes), "faults", 0),
        at_most("wait for the others", max(o.served_s for o in outcomes), "s", SERVED_MAX_S),
        at_most("restarts after a fault", max(restarts), "restarts", 1),
        Measure("faults that ended the process", restarts[1], "faults"),
        *(Measure(f"volume {end}", count, "faults") for end, count in sorted(ends.items())),
        Measure("acknowledged chunks read at the end", chunk_count, "chunks"),
    ]


def table(outcomes: Iterable[Outcome]) -> str:
    """Return the table of kinds and places, with the results of the cases in each cell."""
    cells: dict[tuple[Kind, Place], Counter[str]] = {}
    for outcome in outcomes:
        cell = cells.setdefault((outcome.case.kind, outcome.case.place), Counter())
        cell["AMISS" if outcome.faults else outcome.end] += 1
    rows = [["", *Place]]
    for kind in Kind:
        found = [cells.get((kind, place), Counter()) for place in Place]
        texts = [", ".join(f"{count} {end}" for end, count in cell.items()) for cell in found]
        rows.append([kind, *(text or "-" for text in texts)])
    lines = ["".join(f"{cell:<{WIDTH if i else 11}}" for i, cell in enumerate(row)) for row in rows]
    return "\n".join([*lines, f"no EIO: {why_not()}" if why_not() else ""])


def tell(text: str, count: int) -> None:
    """Print the number of completed cases, and a text about a deviation."""
    print(f"{count} of {COUNT} {text}" if text else f"{count}", file=sys.stderr, flush=True)
