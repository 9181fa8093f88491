"""How `suture` begins: a Ctrl-C while Python still imports ends it without a traceback."""

import gc
import os
import signal

GARBAGE_COUNT = 50_000  # objects between two collections; most commands end before the first


def main() -> None:
    """Import the command line with SIGINT at its default, then run it."""
    gc.set_threshold(GARBAGE_COUNT)  # to look for garbage while importing takes an eighth of it
    is_ignored = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # by nohup
    if not is_ignored:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it tells a person what the error says again
    from agent.cli.main import main as run

    if not is_ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
