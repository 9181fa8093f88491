"""moto's store behind a gate: `python -m tests.support.verification.gated_store PORT DIRECTORY`.

A request that writes below a table of health waits, once it has said so by a file in DIRECTORY,
until the file `open` is there. Whoever sends it is then known to be in the middle of its work.
"""

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Event
from typing import Any, Final

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

POLL_S: Final = 0.05
OPEN: Final = "open"


class Gate:
    """A WSGI application before another."""

    def __init__(self, within: Callable[..., Iterable[bytes]], directory: Path) -> None:
        self._within = within
        self._directory = directory

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if environ["REQUEST_METHOD"] in ("PUT", "POST") and "/health/" in path:
            (self._directory / path.rpartition("/")[2]).touch()
            while not (self._directory / OPEN).exists():
                Event().wait(POLL_S)
        return self._within(environ, start)


def held(directory: Path) -> list[str]:
    """Return the names of the files that somebody was about to write."""
    return sorted(path.name for path in directory.iterdir() if path.name != OPEN)


if __name__ == "__main__":
    store = Gate(DomainDispatcherApplication(create_backend_app), Path(sys.argv[2]))
    run_simple("127.0.0.1", int(sys.argv[1]), store, threaded=True)
