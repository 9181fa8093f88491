"""Exit codes, the same for every program: this is the table, and docs/OPERATIONS.md shows it.

0   done, and nothing is wrong
1   refused or failed; the message says why
2   done, and there is something to do: damage, differences, replicas not healed
3   not possible now, or nobody can tell; try again later
4   done, and a person is wanted at once: some data has no healthy replica
64  the command line was wrong
130 stopped by Ctrl-C, SIGTERM or SIGHUP
141 whoever read the output went before its end, so nobody can tell how it would have ended

`spark_verify` runs where no agent is installed, and has a copy of what it uses; a test compares.
"""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of all programs; none of them uses all."""

    OK = 0
    FAILED = 1
    TO_DO = 2
    UNAVAILABLE = 3
    DATA_AT_RISK = 4
    USAGE = 64  # parsers say 2, which here says that there is something to do
    INTERRUPTED = 130  # as a shell reports a SIGINT
    READER_GONE = 141  # as it reports a SIGPIPE


PARSERS_USAGE = 2
"""What typer exits with when a command line is wrong."""


def told(code: str | int | None) -> str | int | None:
    """Return what a program exits with where typer would exit with `code`."""
    return Exit.USAGE if code == PARSERS_USAGE else code
