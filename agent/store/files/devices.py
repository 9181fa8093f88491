"""Disks below a directory, and the kernel's I/O counters of a block device.

The device number of a directory identifies its partition in /sys/dev/block. The entry of the
partition leads to the disk, or to the disks below a device mapper. A file system in memory, on the
network, or an overlay has neither disks nor counters.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SYSFS: Final = Path("/sys")
STAT_FIELDS_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """The kernel's counters of a device since boot.

    The fields are the number of completed reads and writes, and the total time of each kind in
    milliseconds, including the time in queues.
    """

    reads: int
    read_ms: int
    writes: int
    write_ms: int


def block_device(directory: Path, *, sysfs: Path = SYSFS) -> Path | None:
    """Return the /sys directory of the block device that stores `directory`.

    Return None if the file system has no block device, or if the device is unknown.
    """
    try:
        number = directory.stat().st_dev
        place = sysfs / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
        return place.resolve(strict=True)
    except OSError:
        return None


def disks_of(device: Path) -> list[str]:
    """Return the names of the disks below a block device, for example ["sda"].

    The list is never empty.
    """
    if (device / "partition").exists():
        return disks_of(device.parent)
    slaves = device / "slaves"
    below = sorted(slaves.iterdir()) if slaves.is_dir() else []
    found = [name for slave in below for name in disks_of(slave.resolve())]
    return list(dict.fromkeys(found)) or [device.name]


def counts_of(device: Path) -> DiskCounters | None:
    """Return the kernel's counters of a block device, or None if they cannot be read."""
    try:
        fields = [int(word) for word in (device / "stat").read_text().split()]
    except (OSError, ValueError):
        return None
    if len(fields) < STAT_FIELDS_MIN:
        return None
    return DiskCounters(reads=fields[0], read_ms=fields[3], writes=fields[4], write_ms=fields[7])
