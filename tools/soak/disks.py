"""Disks of the soak test: file systems on loop devices, which can lose power and fill up.

As in xfstests, the file system itself simulates the power cut: `EXT4_IOC_SHUTDOWN` without a flush
of the log stops the file system immediately. No unsynced data is written after that. The next mount
replays the journal. If this process may not mount file systems, a disk is a directory without
faults.
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
LEFT_BYTES: Final = 64 * 1024  # space left on a full disk: less than any chunk


class NoLoopDevices(Exception):
    """Raised if this process may not mount a file system."""


def run(*words: str | Path) -> str:
    """Run a command; return its output. Raise NoLoopDevices if it fails."""
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
    """A directory in place of a disk. It cannot lose power or fill up."""

    path: Path

    def make(self) -> None:
        """Create the disk and make it usable."""
        self.path.mkdir(parents=True, exist_ok=True)

    def cut_power(self) -> bool:
        """Discard unsynced data; return True if that is possible on this disk."""
        return False

    def power_on(self) -> None:
        """Make the disk usable again."""

    def fill(self) -> bool:
        """Use up all space; return True if that is possible on this disk."""
        return False

    def free(self) -> None:
        """Release the space."""

    def remove(self) -> None:
        """Release its system resources."""


@dataclass
class LoopDisk(Disk):
    """An ext4 of `size_bytes` in a file, on a loop device."""

    image: Path
    size_bytes: int
    device: str = field(default="", init=False)

    def make(self) -> None:
        """Create the file system, and mount it. Raise NoLoopDevices if that is not possible."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.image.open("wb") as file:
            file.truncate(self.size_bytes)
        run("mkfs.ext4", "-q", "-F", "-m", "0", self.image)
        self.power_on()

    def cut_power(self) -> bool:
        """Stop the file system immediately, without writing unsynced data; return True. Processes
        with open files on it get errors."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)
        return True

    def power_on(self) -> None:
        """Mount the file system, for the first time or after a power cut. Processes with open files
        on it must have ended."""
        if self.device:
            run("umount", self.path)
            run("losetup", "-d", self.device)
        self.device = run("losetup", "-f", "--show", self.image)
        run("mount", self.device, self.path)

    def fill(self) -> bool:
        """Use up nearly all space, with one file."""
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
        """Remove the file that `fill` created."""
        (self.path / FILLER).unlink(missing_ok=True)

    def remove(self) -> None:
        """Unmount the file system, release the loop device, and remove the image file."""
        with suppress(NoLoopDevices):
            run("umount", self.path)
        if self.device:
            with suppress(NoLoopDevices):
                run("losetup", "-d", self.device)
        self.image.unlink(missing_ok=True)

    def _free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize
