"""Runs `suture` on a pseudo terminal, so that a test can read its question and answer it."""

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
READ_BYTES = 65_536
WAIT_S = 60.0


class Terminal:
    """A running command that asks for confirmation."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "agent.cli.start", *arguments]
        self._text = ""

    @property
    def shown(self) -> str:
        """The printed text, without the line breaks of the terminal."""
        return " ".join(self._text.split())

    def __enter__(self) -> "Terminal":
        self._mine, theirs = pty.openpty()
        self._process = subprocess.Popen(
            self._command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "dumb", "PYTHONPATH": str(ROOT)},
        )
        os.close(theirs)
        self._read_until("[y/N]")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._mine)
        self._process.kill()
        self._process.wait(WAIT_S)

    def answer(self, word: str) -> int:
        """Type a word as the answer; return the exit code of the command."""
        os.write(self._mine, f"{word}\n".encode())
        self._read_until("\0")
        return self._process.wait(WAIT_S)

    def _read_until(self, end: str) -> None:
        seen = ""
        while end not in seen:
            try:
                seen += os.read(self._mine, READ_BYTES).decode()
            except OSError:  # a terminal reports in this way that the other side is closed
                break
        self._text += seen
