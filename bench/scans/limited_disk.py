"""A disk limited in bytes and reads per second by the kernel.

    file ─► loop device (direct I/O) ─► ext4 ─► what the processes in the control group read

The block throttle of Linux (control groups, version 1 or 2) limits a process group's reads from the
loop device: excess reads are queued, clients' reads behind the scan's. Needs root, `losetup` and
`mkfs.ext4`.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BLKIO: Final = Path("/sys/fs/cgroup/blkio")  # version 1
UNIFIED: Final = Path("/sys/fs/cgroup")  # version 2
COMMAND_TIMEOUT_S: Final = 120


@dataclass(frozen=True, slots=True)
class LimitedDisk:
    """A mounted file system; reads of processes added with `hold` are limited."""

    path: Path
    group: Path

    def hold(self, pid: int) -> None:
        """Limit a process with all its threads."""
        (self.group / "cgroup.procs").write_text(str(pid))


def why_not() -> str:
    """Return what this machine lacks for a limited disk; "" if nothing."""
    if os.geteuid():
        return "needs root"
    if not BLKIO.is_dir() and "io" not in _controllers():
        return "no control group limits block devices here"
    return "" if Path("/dev/loop-control").exists() else "no loop devices"


def _controllers() -> list[str]:
    path = UNIFIED / "cgroup.controllers"
    return path.read_text().split() if path.exists() else []


@contextmanager
def limited_disk(
    folder: Path, *, size_bytes: int, bytes_per_s: int, reads_per_s: int
) -> Iterator[LimitedDisk]:
    """Create a disk below `folder`; it is always removed at the end."""
    image, mounted = folder / "disk", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    device = _run("losetup", "--direct-io=on", "--find", "--show", str(image))
    try:
        _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device)
        _run("mount", "-o", "noatime", device, str(mounted))
        try:
            with _group(device, bytes_per_s, reads_per_s) as group:
                yield LimitedDisk(mounted, group)
        finally:
            _run("umount", str(mounted))
    finally:
        _run("losetup", "--detach", device)
        image.unlink()


@contextmanager
def _group(device: str, bytes_per_s: int, reads_per_s: int) -> Iterator[Path]:
    """Create the control group and set its limits. It must be empty at the end."""
    number = Path(device).stat().st_rdev
    name = f"{os.major(number)}:{os.minor(number)}"
    group = (BLKIO if BLKIO.is_dir() else UNIFIED) / f"suture-bench-{os.getpid()}"
    group.mkdir()
    try:
        if BLKIO.is_dir():
            (group / "blkio.throttle.read_bps_device").write_text(f"{name} {bytes_per_s}")
            (group / "blkio.throttle.read_iops_device").write_text(f"{name} {reads_per_s}")
        else:
            (UNIFIED / "cgroup.subtree_control").write_text("+io")
            (group / "io.max").write_text(f"{name} rbps={bytes_per_s} riops={reads_per_s}")
        yield group
    finally:
        group.rmdir()


def _run(*command: str) -> str:
    """Run a command; return its output. Raise CalledProcessError."""
    ran = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S
    )
    return ran.stdout.strip()
