"""Exit codes, the same for every program; docs/operations/exit-codes.md has the same table.

- 0: done, and nothing is wrong
- 1: rejected or failed; the message has the reason
- 2: done, and there is something to do: damage, differences, replicas not repaired
- 3: not possible now, or unknown; try again later
- 4: done, but some data has no healthy replica, so an operator is needed at once
- 64: invalid command line
- 130: stopped by Ctrl-C, SIGTERM or SIGHUP
- 141: the reader of the output has gone, so the result is unknown
"""

from enum import IntEnum

from suture.errors import SutureError, UnavailableError


class ExitCode(IntEnum):
    """Exit codes of all programs. Each program uses some of them."""

    OK = 0
    FAILED = 1
    TO_DO = 2
    UNAVAILABLE = 3
    DATA_AT_RISK = 4
    USAGE = 64  # not 2, as usual for parsers, because 2 means that there is something to do
    INTERRUPTED = 130  # a shell's code for SIGINT
    READER_GONE = 141  # a shell's code for SIGPIPE


PARSERS_USAGE = 2
"""The exit code of typer for an invalid command line."""


def exit_code_of_error(error: SutureError) -> ExitCode:
    """Return the exit code of a command that fails with this error."""
    return ExitCode.UNAVAILABLE if isinstance(error, UnavailableError) else ExitCode.FAILED


def exit_code_of(code: str | int | None) -> str | int | None:
    """Convert an exit code of typer to the program's exit code."""
    return ExitCode.USAGE if code == PARSERS_USAGE else code
