"""Removes old finished runs, at the end of a verification.

The latest full run of a cluster and the requested run are never removed.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from spark_verify.runs import finished_summaries, remove_run
from spark_verify.storage import Storage

DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The runs to keep: a run is kept if either number keeps it; all runs if both are 0."""

    count: int = 0
    """Number of newest runs to keep; 0 = keep none because of the number."""
    days: int = 0
    """Maximum age in days of a snapshot whose run is kept; 0 = keep none because of the age."""


@dataclass(frozen=True, slots=True)
class FinishedRunInfo:
    """Facts about a finished run that determine whether it is kept."""

    run_id: str
    as_of_ms: int
    is_partial: bool


def runs_to_remove(
    runs: Sequence[FinishedRunInfo], keep: RetentionPolicy, now_ms: int
) -> list[FinishedRunInfo]:
    """Return the runs of one cluster to remove, oldest first.

    Partial runs are counted separately, so that many of them do not displace full runs. The latest
    full run is never removed.
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
    """Remove old runs of each cluster and return their ids. Raise OSError if a file cannot be
    removed.

    A run that cannot be read is kept. It is no error if another process removes a run at the same
    time. `before` is called with the ids of all runs to remove, before their removal. `asked` is
    the run that the caller requested; it is not removed.
    """
    clusters: dict[str, list[FinishedRunInfo]] = defaultdict(list)
    for run_id, summary in finished_summaries(storage).items():
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
