"""A file system so small that a test can fill it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

DISK_BYTES: Final = 3 * 1024**2


class SmallDisk:
    """A small file system in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ballast = path / "ballast"
        self._inode_count = 0

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Allocate all space except `leave_bytes`. Fail if more than that remains free."""
        self.ballast.unlink(missing_ok=True)
        space = os.statvfs(self.path)
        with self.ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - leave_bytes)
        space = os.statvfs(self.path)
        assert space.f_bavail * space.f_frsize <= leave_bytes + 4096

    def take_inodes(self) -> None:
        """Create files until no inode is free."""
        directory = self.path / "inodes"
        with suppress(OSError):
            directory.mkdir(exist_ok=True)
            while True:
                self._inode_count += 1
                (directory / str(self._inode_count)).touch()
        assert os.statvfs(self.path).f_favail == 0

    def free(self) -> None:
        """Remove the files that occupy the space and the inodes."""
        self.ballast.unlink(missing_ok=True)
        shutil.rmtree(self.path / "inodes", ignore_errors=True)


@contextmanager
def small_disk(
    path: Path, size_bytes: int = DISK_BYTES, *, inode_count: int = 0
) -> Iterator[SmallDisk]:
    """Mount a disk for the body; skip the test if mounting is not permitted."""
    path.mkdir()
    options = f"size={size_bytes},nr_inodes={inode_count}"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(reason="a small file system can be mounted by root only")
    try:
        yield SmallDisk(path)
    finally:
        command = ["umount", "--lazy", str(path)]
        subprocess.run(command, check=True)
