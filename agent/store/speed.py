"""How fast a volume is read past the page cache: measured on what lies there, for a moment."""

from collections.abc import Iterator
from time import perf_counter
from typing import Final

from agent.store.files.blockfile import read_past_cache
from agent.store.files.layout import holds_data
from agent.store.replica_store import ReplicaStore

MEASURED_S: Final = 0.2  # a host with twelve disks must not start slowly
PIECE_BYTES: Final = 4 * 1024**2
BYTES_MIN: Final = 16 * 1024**2  # fewer bytes measure opening files
REPLICAS_MAX: Final = 16
UNKNOWN: Final = 0.0


def measured_bytes_per_s(store: ReplicaStore, volume_id: str) -> float:
    """Return the speed of sequential reads, UNKNOWN when there is too little to read."""
    read_bytes = 0
    begun_s = perf_counter()
    for length_bytes in _reads(store, volume_id):
        read_bytes += length_bytes
        if perf_counter() - begun_s > MEASURED_S:
            break
    duration_s = perf_counter() - begun_s
    return read_bytes / duration_s if read_bytes >= BYTES_MIN and duration_s else UNKNOWN


def _reads(store: ReplicaStore, volume_id: str) -> Iterator[int]:
    """Read block files of a few replicas; yield the bytes of each read. Ends at any error."""
    for facts in store.replicas(count=REPLICAS_MAX, volume_id=volume_id):
        try:
            for path in store.paths(facts.container_id).chunks.iterdir():
                if not holds_data(path.name):
                    continue
                offset = 0
                while data := read_past_cache(path, offset, PIECE_BYTES):
                    yield len(data)
                    offset += len(data)
        except OSError:
            return  # a scan will say what is wrong there
