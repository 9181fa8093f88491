"""How `suture` begins: a Ctrl-C while Python still imports ends it without a traceback."""

import gc
import os
import signal
import sys

GARBAGE_COUNT = 50_000  # objects between two collections; most commands end before the first


def main() -> None:
    """Import what the command line needs with SIGINT at its default, then run it."""
    gc.set_threshold(GARBAGE_COUNT)  # to look for garbage while importing takes an eighth of it
    is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # by nohup
    if not is_ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it tells a person what the error says again
    from agent.cli.main import run

    def imported() -> None:
        if not is_ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    code = run(sys.argv[1:], imported=imported)
    gc.freeze()  # the process ends: to look for garbage once more takes a sixth of a quick command
    sys.exit(code)


if __name__ == "__main__":
    main()
