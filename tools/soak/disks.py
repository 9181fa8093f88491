"""The disks of the soak: file systems on loop devices, which can lose power and fill up.

A power cut is the file system's own: `EXT4_IOC_SHUTDOWN` without a flush of the log ends it at
once, and nothing is written any more that was not synced, as xfstests does it. Mounted again, its
journal is replayed. Where this process may mount nothing, a disk is a directory without accidents.
"""

import fcntl
import os
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

EXT4_IOC_SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = 2
FILLER: Final = "filler"
FILL_PIECE_BYTES: Final = 4 * 1024**2
LEFT_BYTES: Final = 64 * 1024  # of a full disk: less than any chunk that is written


class NoLoopDevices(Exception):
    """This process may not mount a file system."""


def run(*words: str | Path) -> str:
    """Run a command; return its output. Raise NoLoopDevices: it failed."""
    try:
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, check=True, text=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or ""
        raise NoLoopDevices(f"{' '.join(map(str, words))}: {error} {said}".strip()) from error
    return done.stdout.strip()


@dataclass
class Disk:
    """A directory that is a disk; here without accidents."""

    path: Path

    def make(self) -> None:
        """Make it, and use it."""
        self.path.mkdir(parents=True, exist_ok=True)

    def cut_power(self) -> bool:
        """Lose what was not synced; return whether that was possible."""
        return False

    def power_on(self) -> None:
        """Use it again."""

    def fill(self) -> bool:
        """Take all room; return whether that was possible."""
        return False

    def free(self) -> None:
        """Give the room back."""

    def remove(self) -> None:
        """Give back what it took of the system."""


@dataclass
class LoopDisk(Disk):
    """An ext4 of `size_bytes` in a file, on a loop device."""

    image: Path
    size_bytes: int
    device: str = field(default="", init=False)

    def make(self) -> None:
        """Make the file system, and mount it. Raises NoLoopDevices."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.image.open("wb") as file:
            file.truncate(self.size_bytes)
        run("mkfs.ext4", "-q", "-F", "-m", "0", self.image)
        self.power_on()

    def cut_power(self) -> bool:
        """End the file system at once; what still has a file of it open gets errors."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)
        return True

    def power_on(self) -> None:
        """Mount it, after a cut also: whoever had files of it open has ended."""
        if self.device:
            run("umount", self.path)
            run("losetup", "-d", self.device)
        self.device = run("losetup", "-f", "--show", self.image)
        run("mount", self.device, self.path)

    def fill(self) -> bool:
        """Take all room but a little, with one file."""
        with (self.path / FILLER).open("wb") as file:
            offset = 0
            while (left := self._free_bytes()) > LEFT_BYTES:
                length = min(FILL_PIECE_BYTES, left - LEFT_BYTES // 2)
                try:
                    os.posix_fallocate(file.fileno(), offset, length)
                except OSError:
                    break
                offset += length
        return True

    def free(self) -> None:
        """Remove that file."""
        (self.path / FILLER).unlink(missing_ok=True)

    def remove(self) -> None:
        """Unmount it, and give the device back."""
        with suppress(NoLoopDevices):
            run("umount", self.path)
        if self.device:
            with suppress(NoLoopDevices):
                run("losetup", "-d", self.device)
        self.image.unlink(missing_ok=True)

    def _free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize
