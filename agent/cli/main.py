"""Runs the command line `suture`, and converts errors to exit codes.

`agent.cli.program` has all commands.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from suture.errors import Code, RefusedError, SutureError, missing_extra
from suture.runtime.exit_codes import ExitCode, exit_code_of_error
from suture.terminal.credentials import is_secured
from suture.terminal.streams import STDOUT

PLAINTEXT_HINT: Final = (
    "is it running? --scm says where the SCM is; suture status asks all nodes; a server with "
    "certificates wants yours (--tls-certificate)"
)
SECURED_HINT: Final = (
    "is it running, does it believe your certificate, and you its? suture tls show FILE says whose "
    "a certificate is, and until when"
)


def prepared(arguments: Sequence[str]) -> Callable[[], int]:
    """Import the modules that a command line needs. Return the function that runs the command."""
    from agent.cli.program import prepare

    return prepare(arguments)


def run(arguments: Sequence[str], *, imported: Callable[[], object] = lambda: None) -> int:
    """Run one command line. Return its exit code.

    `imported` is called after the imports, before the command begins.
    """
    as_json = "--json" in arguments
    try:
        call = prepared(arguments)
        imported()
        return written(call())
    except SutureError as error:
        if error.code is Code.UNAVAILABLE and not error.hint:
            error.hint = SECURED_HINT if is_secured() else PLAINTEXT_HINT
        fail(error, as_json=as_json)
        return exit_code_of_error(error)
    except ModuleNotFoundError as error:
        fail(missing_extra(error, "this command"), as_json=as_json)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except (BrokenPipeError, SystemExit):  # typer and rich raise SystemExit
        leave_stdout()  # the reader has closed the pipe
        return ExitCode.READER_GONE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if error.filename == STDOUT:
            leave_stdout()
            where, as_json = f"cannot write to {STDOUT}: ", False
        fail(RefusedError(Code.IO_EXCEPTION, f"{where}{error.strerror or error}"), as_json=as_json)
        return ExitCode.FAILED


def written(code: int) -> int:
    """Flush stdout, and return `code`. Raise OSError if stdout cannot be written."""
    sys.stdout.flush()
    return code


def fail(error: SutureError, *, as_json: bool) -> None:
    """Print an error: as JSON on stdout, or as text on stderr."""
    from suture.terminal import output  # success needs no colours

    try:
        output.fail(error, as_json=as_json)
        sys.stdout.flush()
    except OSError:  # stdout is unwritable; report `error` on stderr
        leave_stdout()
        output.fail(error, as_json=False)


def leave_stdout() -> None:
    """Redirect stdout to /dev/null, because stdout cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
