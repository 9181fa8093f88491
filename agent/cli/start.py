"""Start of `suture`, with the signals handled in each phase.

While Python imports, a signal has its default effect, and ends the process without a traceback.
Later it lets the command clean up. The kernel withholds the default effect from process 1 of a
container, so there the handler ends the process itself. The command also works without a reader of
its output.
"""

import gc
import os
import signal
import sys
from types import FrameType

from suture.runtime.umask import bound_umask
from suture.terminal.streams import open_outputs

GARBAGE_COUNT = 50_000  # objects between two collections; most commands end before the first
INTERRUPTED = (
    130  # suture.runtime.exit_codes.ExitCode.INTERRUPTED, not imported here to start faster
)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Import what the command line needs with signals at their default, then run it."""
    gc.set_threshold(GARBAGE_COUNT)  # collections take an eighth of the import time
    open_outputs()
    bound_umask()
    heeded = [one for one in ENDING if signal.getsignal(one) != signal.SIG_IGN]  # for nohup
    for one in heeded:
        signal.signal(one, _end)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would repeat the error's text
    from agent.cli.main import run

    def imported() -> None:
        for one in heeded:
            signal.signal(one, signal.default_int_handler)

    code = run(sys.argv[1:], imported=imported)
    gc.freeze()  # a last collection would take a sixth of a quick command
    sys.exit(code)


def _end(number: int, _frame: FrameType | None) -> None:
    """End the process by the signal, or with exit code 130 if it has no default effect."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
