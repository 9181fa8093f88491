"""How `suture` begins: a signal while Python still imports ends it without a traceback, and one
later lets it tidy up. Where nobody reads what it prints, it works all the same.

While Python imports, a signal has its default effect. The kernel withholds that from process 1 of
a container, so the handler ends the process itself.
"""

import gc
import os
import signal
import sys
from types import FrameType

from agent.cli.terminal.streams import open_outputs
from agent.runtime.umask import bound_umask

GARBAGE_COUNT = 50_000  # objects between two collections; most commands end before the first
INTERRUPTED = 130  # agent.runtime.exits.Exit.INTERRUPTED, which imports more than this needs
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Import what the command line needs with signals at their default, then run it."""
    gc.set_threshold(GARBAGE_COUNT)  # to look for garbage while importing takes an eighth of it
    open_outputs()
    bound_umask()
    heeded = [one for one in ENDING if signal.getsignal(one) != signal.SIG_IGN]  # but for nohup
    for one in heeded:
        signal.signal(one, _end)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it tells a person what the error says again
    from agent.cli.main import run

    def imported() -> None:
        for one in heeded:
            signal.signal(one, signal.default_int_handler)

    code = run(sys.argv[1:], imported=imported)
    gc.freeze()  # the process ends: to look for garbage once more takes a sixth of a quick command
    sys.exit(code)


def _end(number: int, _frame: FrameType | None) -> None:
    """End the process by the signal, or with exit code 130 where it has no default effect."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
