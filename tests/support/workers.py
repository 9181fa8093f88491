"""Distributes the tests over several processes: which run in the same process, and which first.

All tests of a file run in one process, because they share the setup of their module. Files that
share a costly fixture also run in one process. Such a set of tests is a scope. The longest scopes
start first, so that no process still runs a long file when the others are done.
"""

from pathlib import Path
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

WORKERS: Final = 4  # two per processor of a small machine: half of a test's time is a wait

TOGETHER: Final = {
    "one Spark session": (
        "tests/integration/ozone/test_ozone_scrubs.py",
        "tests/integration/scm/administration/test_scm_excess.py",
        "tests/integration/scm/administration/test_scm_forget.py",
        "tests/integration/scm/api/test_scm_snapshots.py",
        "tests/spark/test_apply.py",
        "tests/spark/test_backoff.py",
        "tests/spark/test_cluster.py",
        "tests/spark/test_connect.py",
        "tests/spark/test_exported_reports.py",
        "tests/spark/test_generated.py",
        "tests/spark/test_job.py",
        "tests/spark/test_judging.py",
        "tests/spark/test_odd_inputs.py",
        "tests/spark/test_places.py",
        "tests/spark/test_report_browser.py",
        "tests/spark/test_reports.py",
        "tests/spark/test_snapshot.py",
        "tests/spark/test_sql.py",
        "tests/spark/test_vectors.py",
        "tests/spark/test_views.py",
        "tests/spark/test_well.py",
        "tests/unit/spark_verify/test_belief.py",
        "tests/unit/spark_verify/test_damaged.py",
        "tests/unit/spark_verify/test_excess.py",
        "tests/unit/spark_verify/test_options.py",
        "tests/unit/spark_verify/test_report.py",
        "tests/unit/spark_verify/test_retention.py",
        "tests/unit/spark_verify/test_scans.py",
    ),
}
"""Files that share a fixture of the session, by a name of this fixture."""

FIRST: Final = (
    "one Spark session",
    "tests/integration/test_demo.py",
    "tests/spark",
    "tests/fault",
    "tests/packaging",
    "tests/integration",
    "tests/property",
)
"""Scopes, and folders of scopes, in the order in which they start; all others start later."""


def scope_of(nodeid: str) -> str:
    """Return the scope of a test: its file, or the fixture that several files share."""
    file = nodeid.partition("::")[0]
    shared = (name for name, files in TOGETHER.items() if file in files)
    return next(shared, file)


def turn_of(nodeid: str) -> int:
    """Return the position of a test's scope in `FIRST`. Lower positions start earlier."""
    scope = scope_of(nodeid)
    turns = (turn for turn, first in enumerate(FIRST) if f"{scope}/".startswith(f"{first}/"))
    return next(turns, len(FIRST))


def worker_count(paths: list[str]) -> int:
    """Return the number of worker processes for `paths`. If all are single files, return 0 (no
    worker), because they would be finished before a second process has started."""
    return 0 if all(Path(path.partition("::")[0]).is_file() for path in paths) else WORKERS


class Scheduler(LoadScopeScheduling):
    """Assigns whole scopes to processes, in the order in which the tests were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scheduler(config: pytest.Config, log: object) -> Scheduler:
    """Return a scheduler that keeps the order of the collection."""
    config.option.loadscopereorder = False  # by the number of tests, which says nothing of time
    return Scheduler(config, log)
