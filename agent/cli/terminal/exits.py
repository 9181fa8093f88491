"""Exit codes, the same for every command.

0   done, and nothing is wrong
1   refused or failed; the message says why
2   done, and there is something to do: damage, differences, replicas not healed
3   not possible now, or nobody can tell; try again later
64  the command line was wrong
130 stopped by Ctrl-C
"""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `suture`."""

    OK = 0
    FAILED = 1
    TO_DO = 2
    UNAVAILABLE = 3
    USAGE = 64
