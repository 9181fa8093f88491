"""Prepares stdout and stderr of a command, so that they accept any text and errors name them.

Commands import this module first, so it imports little.
"""

import io
import sys
from typing import Any

from suture.runtime.standard_streams import open_standard_streams

STDOUT = "stdout"  # the stream's name in errors


class Output(io.FileIO):
    """The stream stdout of a command. Its errors contain the name `stdout`, because stdout may be
    redirected to a full disk."""

    def write(self, data: Any) -> int:  # a buffer
        """Write some of the data. Raise an OSError with the file name `stdout` if this fails."""
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STDOUT
            raise


def open_outputs() -> None:
    """Make stdout and stderr accept any text.

    A closed stream is replaced by /dev/null. A character that the terminal's encoding lacks is
    printed as its code. stdout writes each text completely even under `PYTHONUNBUFFERED`, with
    which Python's own stream would lose the end of a file.
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
