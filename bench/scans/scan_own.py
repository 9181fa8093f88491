"""Runs the agent's scan in a process: `python -m bench.scans.scan_own VOLUME WORKERS CONTAINER...`.

A worker is a thread and takes every WORKERS-th container. Prints one line of JSON: bytes, seconds
and processor seconds of the scan alone. The start and one-time work are not counted: a small
container is scanned first, with the buffers of every worker.
"""

import json
import sys
import threading
import time
from pathlib import Path

from agent.store.direct_io import ReadBuffers
from agent.store.replica_store import ReplicaStore
from agent.store.scan_reader import StoreReplicaReader
from bench.scans.scan_world import OPTIONS, WARM_UP, open_store
from merkle.replica import ContainerId
from scanner.replica_scan import scan_replica
from scanner.scan_outcome import ScanOutcome


def main(volume: Path, worker_count: int, containers: list[ContainerId]) -> None:
    """Scan each container once with several workers, and print the cost."""
    store = open_store(volume)
    outcomes: list[ScanOutcome] = []
    buffers = [ReadBuffers() for _ in range(worker_count)]
    for each in buffers:
        scan(store, WARM_UP, each)

    def work(index: int) -> None:
        for container_id in containers[index::worker_count]:
            outcomes.append(scan(store, container_id, buffers[index]))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(worker_count)]
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
    reader = StoreReplicaReader(
        store, container_id, store.begin_scan(container_id), buffers=buffers
    )
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
    main(Path(sys.argv[1]), int(sys.argv[2]), [ContainerId(int(item)) for item in sys.argv[3:]])
