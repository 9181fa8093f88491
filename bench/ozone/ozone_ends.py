"""Runs one side of the scrub comparison in its own process.

    python -m bench.ozone.ozone_ends own|ozone ROOT WARM_UP CONTAINER...
    python -m bench.ozone.ozone_ends beside ROOT WARM_UP DATA_DIR CONTAINER...

`own`: the agent's scan of its own volume, until the findings are durable; `ozone`: the same for
Ozone's volume; `beside`: for a volume of a running datanode. All are unpaced. Prints one line of
JSON. The start and one-time work are not counted: the container WARM_UP is scanned first.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from agent.leases import ContainerLeases
from agent.scan.container_scan import (
    ScanDeps,
    ScannedStore,
    ScanReport,
    StoreScanDeps,
    scan_container,
)
from agent.store.direct_io import ReadBuffers
from bench.ozone.ozone_world import World
from bench.scans.scan_world import open_store
from merkle.replica import ContainerId
from ozone.disk.database import clear_scratch
from ozone.disk.layout import find_volume
from ozone.scrub.history import History
from ozone.scrub.scrub import RESUMABLE_S, OzoneTools
from ozone.scrub.store import OzoneStore
from suture.observe import logs
from suture.runtime.clock import SystemClock


def own(volume: Path) -> tuple[ScanDeps[ScannedStore], Callable[[], object]]:
    """Return the scanner of an agent's volume, and a function that prepares it."""
    store = open_store(volume)
    tools = StoreScanDeps(store=store, leases=ContainerLeases())
    return tools, lambda: None


def ozone(data_dir: Path, state: Path) -> tuple[ScanDeps[ScannedStore], Callable[[], object]]:
    """Return the scanner of an Ozone volume, and a function that prepares it."""
    clear_scratch(state / "views")
    clock = SystemClock()
    volume = find_volume(data_dir)
    history = History(state / "bench.sqlite")
    store = OzoneStore(volume, history, state / "views", clock, database=volume.database)
    return OzoneTools(store=store, clock=clock), store.listing


def main(end: str, root: Path, warm_up: ContainerId, *words: str) -> None:
    """Scan the container WARM_UP, then measure one scan of each container; print the cost."""
    logs.configure("error")
    world = World(root)
    world.state.mkdir(exist_ok=True)
    names = list(words)
    if end == "own":
        tools, before = own(world.own)
    else:
        tools, before = ozone(Path(names.pop(0)) if end == "beside" else world.ozone, world.state)
    buffers = ReadBuffers()

    def scan(container_id: ContainerId) -> ScanReport:
        return scan_container(tools, container_id, buffers=buffers, resumable_s=RESUMABLE_S)

    scan(warm_up)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    before()
    reports = [scan(ContainerId(int(name))) for name in names]
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    document = {
        "bytes": sum(report.bytes_read for report in reports),
        "wrong": sum(report.finding_count + (not report.committed) for report in reports),
        "files": len(reports),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), ContainerId(int(sys.argv[3])), *sys.argv[4:])
