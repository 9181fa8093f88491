"""Exit codes of the job, the same as those of `suture`, whose manual has the table.

They are not part of `suture.runtime` because the job runs where no agent is installed.
"""

from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Exit codes of the job."""

    OK = 0  # clean
    FAILED = 1  # nothing was written
    TO_DO = 2
    DATA_AT_RISK = 4  # some container has no healthy replica
    USAGE = 64
    INTERRUPTED = 130


def exit_code(summary: dict[str, Any]) -> int:
    """Return the exit code for a summary. Missing scans do not count as work, because agents scan
    without a plan.
    """
    if summary["flags"]["DATA_AT_RISK"]:
        return Exit.DATA_AT_RISK
    planned = sum(p["rows"] for action, p in summary["plan"].items() if action != "scan")
    todo = planned or summary["flagged"] or summary["unknown_containers"]
    todo = todo or any(summary["disagreement"].values())
    return Exit.TO_DO if todo else Exit.OK
