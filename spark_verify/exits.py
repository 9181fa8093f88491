"""Exit codes of the job: the same as those of `suture`, in whose manual the table is.

They stand here and not in `agent.runtime` because the job runs where no agent is installed.
"""

from enum import IntEnum


class Exit(IntEnum):
    """What the job ends with."""

    OK = 0  # clean
    FAILED = 1  # nothing was written
    TO_DO = 2
    DATA_AT_RISK = 4  # some container has no healthy replica
    USAGE = 64
    INTERRUPTED = 130
