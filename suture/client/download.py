"""Writes a downloaded file so that it appears under its name only when it is complete."""

import os
import stat
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from suture.errors import Code, RefusedError
from suture.runtime.durable import sync_directory
from suture.wire.mapping.blockpieces import Data


def write_whole(path: Path, pieces: Iterable[Data]) -> None:
    """Write `pieces` to a temporary file, sync it, and rename it to `path`.

    If `path` is a device or a pipe, the pieces are written into it, and it is not replaced. If it
    is a symbolic link, the target of the link is replaced. If the file exists, the new file has the
    same mode. Raise RefusedError(IO_EXCEPTION) if the file cannot be written.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as target:
                target.writelines(pieces)
            return
        beside = path.with_name(f".suture-{os.getpid()}-{uuid.uuid4().hex}.part")
        try:
            with beside.open("xb") as file:  # in a shared directory, an attacker's link may be here
                with suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
    except OSError as error:
        raise RefusedError(Code.IO_EXCEPTION, f"cannot write {path}: {error.strerror}") from error
