"""Probe of a volume: check that its directories exist, and that written data can be read back.

If a directory or VERSION is missing, the probe fails permanently. Otherwise it writes a file, syncs
it, reads it past the page cache, compares the bytes, and removes the file. A failed step counts as
one failure. A full disk is not a failure. If the host is short of a resource, there is no result,
and the caller probes again.

The caller decides how many failures are too many, and runs the probe in a thread that may hang.
"""

import errno
import os
import secrets
from dataclasses import dataclass
from typing import Final

from agent.store.files.blockfile import read_past_cache
from agent.store.files.layout import VolumeLayout
from suture.runtime.durable import DIRECTORY_MODE, OUT_OF_SPACE, is_shortage, open_new, write_all

PROBE_BYTES: Final = 4096
GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class Probe:
    """Result of a probe, which tests if a volume works.

    `error` is "" if the volume works. `is_final` is True if another attempt cannot succeed.
    `shortage` is the reason why the volume could not be tested, for example a lack of file
    descriptors (`is_shortage`).
    """

    error: str = ""
    is_final: bool = False
    shortage: str = ""


def probe(layout: VolumeLayout) -> Probe:
    """Test the volume, and return the result. A fault of the volume raises no exception."""
    try:
        for directory in (layout.hdds, layout.current, layout.database):
            if not directory.is_dir():
                return Probe(f"{directory} is gone", is_final=True)
        layout.version.stat()
    except OSError as error:
        return _failure(layout, "looking", error)
    path = layout.probes / "probe"  # overwrites the file of a probe that was killed
    data = secrets.token_bytes(PROBE_BYTES)
    doing = "writing"
    try:
        layout.probes.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        fd = open_new(path)
        try:
            write_all(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        doing = "reading"
        found = read_past_cache(path, 0, PROBE_BYTES)
        doing = "removing"
        path.unlink()
    except OSError as error:
        if error.errno in OUT_OF_SPACE:
            return Probe()  # a full disk is not broken
        return _failure(layout, doing, error)
    if found != data:
        return Probe(f"{layout.volume}: what was read is not what was written")
    return Probe()


def _failure(layout: VolumeLayout, doing: str, error: OSError) -> Probe:
    name = errno.errorcode.get(error.errno or 0, "unknown")
    if is_shortage(error):
        return Probe(shortage=f"{layout.volume}: {doing} failed with {name}")
    return Probe(f"{layout.volume}: {doing} failed with {name}", is_final=error.errno in GONE)
