"""Disks that store a directory, and the kernel's I/O counters of a block device.

The device number of a directory leads to its partition in /sys/dev/block, and from there to the
disk, or to the lower disks of a device mapper. A file system without a disk (memory, network,
overlay) has neither disks nor counters.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SYSFS: Final = Path("/sys")
STAT_FIELDS_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class DiskCounters:
    """The kernel's counters since boot: completed reads and writes, and their total milliseconds
    including queueing."""

    reads: int
    read_ms: int
    writes: int
    write_ms: int


def block_device(directory: Path, *, sysfs: Path = SYSFS) -> Path | None:
    """Return the /sys directory of the block device that has `directory`; None if there is none or
    it is unknown."""
    try:
        number = directory.stat().st_dev
        place = sysfs / "dev" / "block" / f"{os.major(number)}:{os.minor(number)}"
        return place.resolve(strict=True)
    except OSError:
        return None


def disks_of(device: Path) -> list[str]:
    """Return the names of the disks below a block device, such as sda; at least one name."""
    if (device / "partition").exists():
        return disks_of(device.parent)
    slaves = device / "slaves"
    below = sorted(slaves.iterdir()) if slaves.is_dir() else []
    found = [name for slave in below for name in disks_of(slave.resolve())]
    return list(dict.fromkeys(found)) or [device.name]


def counts_of(device: Path) -> DiskCounters | None:
    """Return the kernel's counters of a block device; None if the device has no readable
    counters."""
    try:
        fields = [int(word) for word in (device / "stat").read_text().split()]
    except (OSError, ValueError):
        return None
    if len(fields) < STAT_FIELDS_MIN:
        return None
    return DiskCounters(reads=fields[0], read_ms=fields[3], writes=fields[4], write_ms=fields[7])
