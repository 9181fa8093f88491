"""Options of a store, with all of its limits."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from agent.store.failure_reports import StoreFailure
from agent.store.files.mounts import FSTAB
from merkle.checksum import Algorithm
from merkle.replica import CHUNK_BYTES_MAX, CONTAINER_BYTES_MAX, ContainerId

MiB: Final = 1024**2
GiB: Final = 1024**3
PACKED_COUNT_MIN: Final = 1024


def wall_clock_ms() -> int:
    """Return the wall clock time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Limits and policies of the store of one datanode."""

    algorithm: Algorithm = Algorithm.XXH3_64
    """Checksum algorithm of new trees."""
    container_bytes_max: int = CONTAINER_BYTES_MAX
    chunk_bytes_max: int = CHUNK_BYTES_MAX
    reserve_bytes: int = 64 * MiB
    """Free space reserved for metadata and repairs; client data never uses it."""
    packed_count_min: int = PACKED_COUNT_MIN
    """Minimum number of small blocks for which an imported replica gets a pack."""
    lmdb_map_bytes: int = 16 * GiB
    """Size of the LMDB map in address space, not on disk; the agent grows it when it is full."""
    verification_keep_ms: int = 0
    """Milliseconds for which verification log files are kept. If it is 0, all files are kept."""
    verification_file_bytes_max: int = 4 * MiB
    """Size at which a new verification log file begins: about 8,000 entries."""
    software: str = ""
    """Version of the agent, for the verification log."""
    fstab: Path = FSTAB
    """Table of expected mounts. An unmounted mount point is not formatted as a new volume."""
    now_ms: Callable[[], int] = field(default=wall_clock_ms)
    on_change: Callable[[ContainerId], None] = lambda _: None
    """Called for every change that is visible in a report."""
    on_trouble: Callable[[StoreFailure], None] = lambda _: None
    """Called for every client call that failed because of the disk."""
