"""How `suture` begins: a signal while Python still imports ends it without a traceback, and one
later lets it tidy up. Where nobody reads what it prints, it works all the same."""

import gc
import io
import os
import signal
import sys
from pathlib import Path
from typing import Any

GARBAGE_COUNT = 50_000  # objects between two collections; most commands end before the first
STDOUT = "stdout"  # the name of it in errors
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


class Output(io.FileIO):
    """stdout, as errors name it: a disk that is full may be another one."""

    def write(self, data: Any) -> int:  # what has bytes
        """Write some of it. Raises OSError of `stdout`."""
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STDOUT
            raise


def open_outputs() -> None:
    """Have stdout and stderr take any text: what was closed is for nobody, and what the encoding
    of a terminal does not have is shown as its code. What stdout takes it takes whole, also where
    Python is told to keep nothing back (`PYTHONUNBUFFERED`): the end of a file would be missing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.name == "<stdout>":
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(Output(sys.stdout.fileno(), "w", closefd=False)),
            encoding=sys.stdout.encoding,
            errors=sys.stdout.errors,
            line_buffering=sys.stdout.line_buffering,
        )


if __name__ == "__main__":
    main()
