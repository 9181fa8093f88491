"""Reader of a verification log without an agent, for example from a removed disk."""

from pathlib import Path
from typing import Final

from agent.store.files.layout import VERIFICATION
from agent.store.verification_log.log_files import files_of
from suture.errors import Code, RefusedError
from suture.runtime.durable import read_file

FILE_BYTES_MAX: Final = 64 * 1024**2  # many times the size that an agent writes

Files = list[tuple[str, bytes]]


def log_directory(path: Path) -> Path:
    """Return the log directory below `path`, which is a volume or a copy of a log.

    Raise RefusedError unless there is exactly one.
    """
    if files_of(path):
        return path
    found = sorted(path.glob(f"hdds/*/{VERIFICATION}"))
    if len(found) != 1:
        raise RefusedError(
            Code.INELIGIBLE,
            f"cannot choose a log: {path} has {len(found)} verification logs",
            hint="name a directory of storage.volumes, or one that has a copy of a log",
        )
    return found[0]


def read_log(path: Path) -> Files:
    """Return the files of a log as (name, content), oldest first.

    Raise RefusedError or OSError if the log cannot be read.
    """
    directory = log_directory(path)
    names = files_of(directory)
    return [(name, read_file(directory / name, bytes_max=FILE_BYTES_MAX)) for name in names]
