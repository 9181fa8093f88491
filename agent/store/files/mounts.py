"""Detection of missing mounts. A mount point without its mount looks like an empty disk."""

import re
from pathlib import Path
from typing import Final

FSTAB: Final = Path("/etc/fstab")
MOUNTS: Final = Path("/proc/self/mountinfo")
TEXT_BYTES_MAX: Final = 16 * 1024**2
_ESCAPE: Final = re.compile(rb"\\([0-7]{3})")


def unmounted(path: Path, *, fstab: Path = FSTAB, mounts: Path = MOUNTS) -> Path | None:
    """Return the mount point at or above `path` that is in `fstab` but not mounted.

    Return None if there is no such mount point, or if the table of mounts cannot be read.
    """
    wanted = _column(fstab, 1)
    mounted = _column(mounts, 4)
    if not mounted:
        return None
    above = (path, *path.parents)
    return next((place for place in above if place in wanted and place not in mounted), None)


def _column(file: Path, number: int) -> set[Path]:
    """Return the paths in one column of a mount table.

    Return an empty set if the table cannot be read.
    """
    try:
        with file.open("rb") as table:
            text = table.read(TEXT_BYTES_MAX)
    except OSError:
        return set()
    rows = [line.split() for line in text.splitlines() if not line.lstrip().startswith(b"#")]
    words = (row[number] for row in rows if len(row) > number)
    names = (_ESCAPE.sub(lambda found: bytes([int(found[1], 8)]), word) for word in words)
    return {Path(name.decode("utf-8", "surrogateescape")) for name in names if name[:1] == b"/"}
