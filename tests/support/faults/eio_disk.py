"""A disk of which chosen pages cannot be read: the kernel returns EIO, or SIGBUS for a mapped file.

The disk is a btrfs with a single copy of everything, in a file on a loop device. If bytes in the
file below the btrfs are changed, they no longer match their checksum, and the kernel returns EIO
for exactly these bytes. This needs root, loop devices and mkfs.btrfs, but no device mapper.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
from pathlib import Path

PAGE_BYTES = 4096
DISK_BYTES = 160 * 1024**2
LEFT_BYTES = 1024**2  # bytes that remain of a cut disk; the superblock is in them
COMMAND_TIMEOUT_S = 60
PROCESS_MADVISE = 440  # the system call, on every architecture
MADV_PAGEOUT = 21
NEEDS = ("mkfs.btrfs", "losetup", "mount", "umount")


def why_not() -> str:
    """Return the reason why an `EioDisk` is impossible on this machine; "" if it is possible."""
    if os.geteuid() != 0:
        return "only root can mount"
    missing = [name for name in NEEDS if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is not installed"
    if "\tbtrfs\n" not in Path("/proc/filesystems").read_text():
        return "the kernel has no btrfs"
    return "" if Path("/dev/loop-control").exists() else "the kernel has no loop devices"


def run(*words: str | Path) -> None:
    """Run a command as root."""
    subprocess.run(words, check=True, capture_output=True, timeout=COMMAND_TIMEOUT_S)


class EioDisk:
    """A btrfs in the file `image`, which can be mounted at `mount_point`."""

    def __init__(self, image: Path, mount_point: Path) -> None:
        self.image = image
        self.mount_point = mount_point
        image.unlink(missing_ok=True)
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        run("mkfs.btrfs", "-q", "-m", "single", "-d", "single", image)

    def mount(self) -> None:
        """Mount the disk. Small files have their own blocks, so that they can fail alone."""
        run("mount", "-t", "btrfs", "-o", "loop,max_inline=0,noatime", self.image, self.mount_point)

    def unmount(self) -> None:
        """Unmount the disk; ignore a failure."""
        with contextlib.suppress(subprocess.CalledProcessError):
            run("umount", self.mount_point)

    def spoil(self, pages: list[bytes]) -> int:
        """Make reads of pages with these contents fail, unless they are in the page cache. Return
        the number of pages on the disk that were changed for this."""
        wanted, count = frozenset(pages), 0
        with self.image.open("r+b") as file:
            fd, at = file.fileno(), 0
            while at < DISK_BYTES:
                try:
                    begin = os.lseek(fd, at, os.SEEK_DATA) // PAGE_BYTES * PAGE_BYTES
                except OSError:  # there is no more data
                    break
                at = os.lseek(fd, begin, os.SEEK_HOLE)
                for place in range(begin, at, PAGE_BYTES):
                    page = os.pread(fd, PAGE_BYTES, place)
                    if page in wanted:
                        os.pwrite(fd, bytes(byte ^ 0xFF for byte in page), place)
                        count += 1
        return count

    def cut(self) -> None:
        """Truncate the image to LEFT_BYTES. From then on, only the page cache can answer reads."""
        os.truncate(self.image, LEFT_BYTES)


def forget_pages(path: Path) -> None:
    """Drop the pages of a file from the page cache. This has no effect on pages that a process has
    mapped."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def forget_mapped(pid: int, path: Path) -> None:
    """Drop the pages of a file that the process `pid` has mapped, with process_madvise(2).

    If memory is short, the kernel itself drops pages that were written back and not used for a long
    time.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    pid_fd = os.pidfd_open(pid)
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if line.endswith(f" {path}"):
                begin = int(line.split("-")[0], 16)
                vector = (ctypes.c_size_t * 2)(begin, path.stat().st_size)
                libc.syscall(PROCESS_MADVISE, pid_fd, vector, 1, MADV_PAGEOUT, 0)
    finally:
        os.close(pid_fd)
