"""Entry point of the command `suture`, which handles signals during the imports.

During the imports, a signal ends the process without a traceback. After the imports, a signal
raises KeyboardInterrupt, so that the command can clean up. In a Linux container, the kernel ignores
signals to process 1 that have the default action. In this case, the handler ends the process.
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
    """Import the modules that the command line needs, run the command, and exit with its exit
    code."""
    gc.set_threshold(GARBAGE_COUNT)  # collections take an eighth of the import time
    open_outputs()
    bound_umask()
    heeded = [one for one in ENDING if signal.getsignal(one) != signal.SIG_IGN]  # nohup: no SIGHUP
    for one in heeded:
        signal.signal(one, _end)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC would print the error, too
    from agent.cli.main import run

    def imported() -> None:
        for one in heeded:
            signal.signal(one, signal.default_int_handler)

    code = run(sys.argv[1:], imported=imported)
    gc.freeze()  # a collection at exit would take a sixth of the time of a quick command
    sys.exit(code)


def _end(number: int, _frame: FrameType | None) -> None:
    """End the process by the signal `number`. If the kernel ignores the signal, exit with code
    130."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
