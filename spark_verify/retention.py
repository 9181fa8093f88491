"""Which old runs go: whole ones only, never the latest complete one of a cluster, and never the one
that was just asked for, whatever its clock says."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from spark_verify.file_systems import Place
from spark_verify.runs import finished_runs, read_summary, remove_run

DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays: a run that one of these numbers keeps. With neither, all of them."""

    count: int = 0
    """So many of the newest; 0 keeps none by their number."""
    days: int = 0
    """Those whose snapshot is no older; 0 keeps none by their age."""


@dataclass(frozen=True, slots=True)
class Known:
    """A finished run, as far as it matters here."""

    place: Place
    as_of_ms: int
    is_partial: bool


def doomed(runs: Sequence[Known], keep: Keep, now_ms: int) -> list[Known]:
    """Return which runs of one cluster go, the oldest first.

    Partial ones are counted by themselves: many verifications of a few nodes do not push out those
    of the whole cluster, and the latest of these always stays.
    """
    if not keep.count and not keep.days:
        return []
    order = sorted(runs, key=lambda run: (run.as_of_ms, run.place.name))
    oldest_ms = now_ms - keep.days * DAY_MS
    found = []
    for is_partial in (False, True):
        own = [run for run in order if run.is_partial is is_partial]
        stays = keep.count if is_partial else max(keep.count, 1)
        old = own[: max(len(own) - stays, 0)]
        found += [run for run in old if not keep.days or run.as_of_ms < oldest_ms]
    return sorted(found, key=lambda run: (run.as_of_ms, run.place.name))


def retain(
    out: Place,
    keep: Keep,
    before: Callable[[Sequence[str]], None] = lambda _: None,
    *,
    asked: str = "",
) -> list[str]:
    """Remove old runs of each cluster; return their names. What cannot be read stays, and what
    another process removes as well is no error. `before` is told the names of all that go, while
    they are there. `asked` is the name of the run that somebody waits for: it stays, too. Raises
    OSError."""
    clusters: dict[str, list[Known]] = defaultdict(list)
    for place in finished_runs(out):
        summary = read_summary(place) or {}
        with suppress(KeyError, TypeError, ValueError):
            clusters[str(summary["cluster_id"])].append(
                Known(place, int(summary["as_of_ms"]), bool(summary["changed_nodes"]))
            )
    now_ms = time.time_ns() // 1_000_000
    old = [
        run.place
        for runs in clusters.values()
        for run in doomed(runs, keep, now_ms)
        if run.place.name != asked
    ]
    before([place.name for place in old])
    removed = []
    for place in old:
        with suppress(FileNotFoundError):
            remove_run(place)
            removed.append(place.name)
    return sorted(removed)
