"""Which old runs go: whole ones only, never the latest complete one of a cluster, and never the one
that was just asked for, whatever its clock says."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from spark_verify.runs import finished_runs, read_summary, remove_run
from spark_verify.storage import Storage

DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What stays: a run that one of these numbers keeps. With neither, all of them."""

    count: int = 0
    """So many of the newest; 0 keeps none by their number."""
    days: int = 0
    """Those whose snapshot is no older; 0 keeps none by their age."""


@dataclass(frozen=True, slots=True)
class FinishedRunInfo:
    """A finished run, as far as it matters here."""

    run_id: str
    as_of_ms: int
    is_partial: bool


def runs_to_remove(
    runs: Sequence[FinishedRunInfo], keep: RetentionPolicy, now_ms: int
) -> list[FinishedRunInfo]:
    """Return which runs of one cluster go, the oldest first.

    Partial ones are counted by themselves: many verifications of a few nodes do not push out those
    of the whole cluster, and the latest of these always stays.
    """
    if not keep.count and not keep.days:
        return []
    order = sorted(runs, key=lambda run: (run.as_of_ms, run.run_id))
    oldest_ms = now_ms - keep.days * DAY_MS
    found = []
    for is_partial in (False, True):
        own = [run for run in order if run.is_partial is is_partial]
        stays = keep.count if is_partial else max(keep.count, 1)
        old = own[: max(len(own) - stays, 0)]
        found += [run for run in old if not keep.days or run.as_of_ms < oldest_ms]
    return sorted(found, key=lambda run: (run.as_of_ms, run.run_id))


def remove_old_runs(
    storage: Storage,
    keep: RetentionPolicy,
    before: Callable[[Sequence[str]], None] = lambda _: None,
    *,
    asked: str = "",
) -> list[str]:
    """Remove old runs of each cluster; return their ids. A run that cannot be read stays, and one
    that another process removes as well is no error. `before` is called with the ids of all runs
    that go, while they are there. `asked` is the run that the caller waits for: it stays, too.
    Raise OSError."""
    clusters: dict[str, list[FinishedRunInfo]] = defaultdict(list)
    for run_id in finished_runs(storage):
        summary = read_summary(storage, run_id) or {}
        with suppress(KeyError, TypeError, ValueError):
            clusters[str(summary["cluster_id"])].append(
                FinishedRunInfo(run_id, int(summary["as_of_ms"]), bool(summary["changed_nodes"]))
            )
    now_ms = time.time_ns() // 1_000_000
    old = [
        run.run_id
        for runs in clusters.values()
        for run in runs_to_remove(runs, keep, now_ms)
        if run.run_id != asked
    ]
    before(old)
    removed = []
    for run_id in old:
        with suppress(FileNotFoundError):
            remove_run(storage, run_id)
            removed.append(run_id)
    return sorted(removed)
