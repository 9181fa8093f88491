"""stdout and stderr, as a command needs them: they take any text, and name themselves in errors.

Imported first of all, so it imports little.
"""

import io
import os
import sys
from pathlib import Path
from typing import Any

STDOUT = "stdout"  # the name of it in errors


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
