"""stdout and stderr, as a command needs them: they take any text, and name themselves in errors.

Imported first of all, so it imports little.
"""

import io
import sys
from typing import Any

from agent.runtime.standard_streams import open_standard_streams

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
    """Have stdout and stderr take any text.

    A closed one becomes /dev/null. A character that the encoding of a terminal lacks is shown as
    its code. stdout writes each text whole even under `PYTHONUNBUFFERED`, where Python's own would
    lose the end of a file.
    """
    open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.name == "<stdout>":
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(Output(sys.stdout.fileno(), "w", closefd=False)),
            encoding=sys.stdout.encoding,
            errors=sys.stdout.errors,
            line_buffering=sys.stdout.line_buffering,
        )
