"""The agent's scan in a process of its own: `python -m bench.scan_own VOLUME CONTAINER ...`.

One thread a container. Prints one line of JSON: bytes, seconds and processor seconds of the scan
alone. Starting is not counted, nor what an agent does once in its life: a small container is
scanned first, with the buffers of every thread.
"""

import json
import sys
import threading
import time
from pathlib import Path

from agent.store.reader import DiskReader, ReadBuffers
from agent.store.store import ReplicaStore
from bench.scan_world import OPTIONS, WARM_UP, open_store
from merkle.replica import ContainerId
from scanner.verify import ScanOutcome, scan_replica


def main(volume: Path, containers: list[ContainerId]) -> None:
    """Scan each container once, all at the same time."""
    store = open_store(volume)
    outcomes: list[ScanOutcome] = []
    buffers = [ReadBuffers() for _ in containers]
    for each in buffers:
        scan(store, WARM_UP, each)
    threads = [
        threading.Thread(target=lambda c=c, b=b: outcomes.append(scan(store, c, b)))
        for c, b in zip(containers, buffers, strict=True)
    ]
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    store.close()
    print(
        json.dumps(
            {
                "bytes": sum(outcome.bytes_read for outcome in outcomes),
                "files": sum(outcome.block_count for outcome in outcomes),
                "wrong": sum(outcome.finding_count for outcome in outcomes),
                "wall_s": wall_s,
                "cpu_s": cpu_s,
            }
        )
    )


def scan(store: ReplicaStore, container_id: ContainerId, buffers: ReadBuffers) -> ScanOutcome:
    """Scan one container as the agent does, up to the commit."""
    reader = DiskReader(store, container_id, store.begin_scan(container_id), buffers=buffers)
    try:
        return scan_replica(
            reader,
            algorithm=OPTIONS.algorithm,
            now_ms=lambda: 0,
            stop=lambda: False,
            progress=lambda _: None,
            pace=lambda _: None,
        )
    finally:
        reader.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), [ContainerId(int(number)) for number in sys.argv[2:]])
