"""Measurement of the read speed of a volume past the page cache, with its existing files."""

from collections.abc import Iterator
from itertools import islice
from time import perf_counter
from typing import Final

from agent.store.files.blockfile import read_past_cache
from agent.store.files.layout import holds_data
from agent.store.volumes.volume import Volume

MEASURED_S: Final = 0.2  # short, because a host with twelve disks must start quickly
PIECE_BYTES: Final = 4 * 1024**2
BYTES_MIN: Final = 16 * 1024**2  # fewer bytes would measure the opening of files
REPLICAS_MAX: Final = 16
UNKNOWN: Final = 0.0


def measured_bytes_per_s(volume: Volume) -> float:
    """Return the speed of sequential reads in bytes per second.

    Return UNKNOWN if the volume has too little data for a measurement.
    """
    read_bytes = 0
    begun_s = perf_counter()
    for length_bytes in _reads(volume):
        read_bytes += length_bytes
        if perf_counter() - begun_s > MEASURED_S:
            break
    duration_s = perf_counter() - begun_s
    return read_bytes / duration_s if read_bytes >= BYTES_MIN and duration_s else UNKNOWN


def _reads(volume: Volume) -> Iterator[int]:
    """Read block files of a few replicas.

    Yield the number of bytes of each read. Stop at an error.
    """
    with volume.index.read() as rows:
        container_ids = [key for key, _ in islice(rows.replicas(), REPLICAS_MAX)]
    for container_id in container_ids:
        try:
            for path in volume.paths(container_id).chunks.iterdir():
                if not holds_data(path.name):
                    continue
                offset = 0
                while data := read_past_cache(path, offset, PIECE_BYTES):
                    yield len(data)
                    offset += len(data)
        except OSError:
            return  # a scan will report the error
