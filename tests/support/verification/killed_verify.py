"""Verify, and die before the n-th change of the file system: `python -m ... N SNAPSHOT OUT`.

Prints how many changes there were where it lived to the end.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spark_verify.file_systems import Place
from spark_verify.pipeline import Request, verify

CHANGES = ("move", "delete_file", "delete_dir", "create_dir", "open_output_stream")


class Fuse:
    """Counts changes; the last one is never made."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.made = 0

    def burn(self) -> None:
        """Count a change, or die."""
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.made += 1


class Files:
    """A file system of which each change may be the last."""

    def __init__(self, files: Any, fuse: Fuse) -> None:
        self._files = files
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        if name in CHANGES:
            self._fuse.burn()
        return getattr(self._files, name)


def main(count: int, snapshot: str, out: str) -> None:
    """Verify as run `r`."""
    fuse = Fuse(count)
    plain, whole = Place.files.fget, Place.created  # type: ignore[attr-defined]

    @contextmanager
    def created(place: Place) -> Iterator[Any]:
        with whole(place) as stream:
            yield stream
            fuse.burn()  # all is written, and nothing is there yet

    Place.files = property(lambda place: Files(plain(place), fuse))  # type: ignore[assignment]
    Place.created = created  # type: ignore[method-assign]
    verify(Request(snapshot, out, run_id="r"))
    sys.stdout.write(f"{fuse.made}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
