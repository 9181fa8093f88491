"""The streams stdout and stderr of a command. They accept any text, and errors name them.

Commands import this module first, so it imports little.
"""

import io
import sys
from typing import Any

from suture.runtime.standard_streams import open_standard_streams

STDOUT = "stdout"  # the stream's name in errors


class Output(io.FileIO):
    """The stream stdout of a command. Its errors name `stdout`, because the full disk may be the
    one that stdout is redirected to."""

    def write(self, data: Any) -> int:  # a buffer
        """Write some of the data. Raise an OSError that names `stdout`."""
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STDOUT
            raise


def open_outputs() -> None:
    """Make stdout and stderr accept any text.

    A closed stream becomes /dev/null. A character that the terminal's encoding lacks is printed as
    its code. stdout writes each text completely even under `PYTHONUNBUFFERED`, where Python's own
    stream would lose the end of a file.
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
