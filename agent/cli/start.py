"""How `suture` begins: a signal while Python still imports ends it without a traceback, and one
later lets it tidy up. Where nobody reads what it prints, it works all the same."""

import gc
import io
import os
import signal
import sys
from pathlib import Path

GARBAGE_COUNT = 50_000  # objects between two collections; most commands end before the first
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Import what the command line needs with signals at their default, then run it."""
    gc.set_threshold(GARBAGE_COUNT)  # to look for garbage while importing takes an eighth of it
    open_outputs()
    heeded = [one for one in ENDING if signal.getsignal(one) != signal.SIG_IGN]  # but for nohup
    for one in heeded:
        signal.signal(one, signal.SIG_DFL)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it tells a person what the error says again
    from agent.cli.main import run

    def imported() -> None:
        for one in heeded:
            signal.signal(one, signal.default_int_handler)

    code = run(sys.argv[1:], imported=imported)
    gc.freeze()  # the process ends: to look for garbage once more takes a sixth of a quick command
    sys.exit(code)


def open_outputs() -> None:
    """Have stdout and stderr take any text: what was closed is for nobody, and what the encoding
    of a terminal does not have is shown as its code."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    main()
