"""Measures the verification log's share of a scan: CPU of its appends against that of the scan.

A container of BENCH_LOG_MIB (1024) in chunks of 4 MiB is read whole, several times, by the real
scan past the page cache, with its commit. A container of 5 GB costs the same one entry for five
times the bytes. CPU is this thread's, so that neither the disk nor other processes count.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from agent.leases import ContainerLeases
from agent.scan.container_scan import StoreScanDeps, scan_container
from agent.store.verification_log.log_files import VerificationLog
from bench.measure import Measure, at_most
from bench.scans.scan_world import WARM_UP, Shape, fill, open_store
from merkle.replica import CHUNK_BYTES_DEFAULT, ContainerId

MIB: Final = 1024**2
SIZE_MIB: Final = int(os.environ.get("BENCH_LOG_MIB", "1024"))
CONTAINER: Final = ContainerId(1)
ROUNDS: Final = 9
SHARE_MAX: Final = 1.0


def measures() -> list[Measure]:
    """Measure the log's share of a scan's CPU time, and the cost of an entry. This takes some
    seconds."""
    chunk_count = SIZE_MIB * MIB // CHUNK_BYTES_DEFAULT
    with tempfile.TemporaryDirectory(prefix="suture-log-", dir=os.environ.get("TMPDIR")) as name:
        volume = Path(name) / "volume"
        fill(volume, CONTAINER, Shape(chunk_count // 8, 8, CHUNK_BYTES_DEFAULT))
        fill(volume, WARM_UP, Shape(1, 1, CHUNK_BYTES_DEFAULT))
        store = open_store(volume)
        tools = StoreScanDeps(store=store, leases=ContainerLeases())
        scan_container(tools, WARM_UP)
        rounds = [_round(tools) for _ in range(ROUNDS)]
        store.close()
    shares = [100 * log_s / scan_s for log_s, scan_s in rounds]
    spread = f"{min(shares):.2f} to {max(shares):.2f} %, {ROUNDS} scans"
    entry_ms = 1000 * statistics.median(log_s for log_s, _ in rounds)
    scan_ms = 1000 * statistics.median(scan_s for _, scan_s in rounds)
    return [
        at_most(
            "log_share", statistics.median(shares), "% of CPU", SHARE_MAX, compared_with=spread
        ),
        Measure("log_entry", entry_ms, "ms of CPU", f"{scan_ms:.0f} ms for {SIZE_MIB} MiB"),
    ]


def _round(tools: StoreScanDeps) -> tuple[float, float]:
    """Scan the container once; return the CPU seconds of appends to the log, and of the complete
    scan."""
    spent_s: list[float] = []
    append = VerificationLog.append

    def measured(*arguments: Any) -> None:
        begun_s = time.thread_time()
        append(*arguments)
        spent_s.append(time.thread_time() - begun_s)

    VerificationLog.append = measured  # type: ignore[method-assign, assignment]
    try:
        begun_s = time.thread_time()
        report = scan_container(tools, CONTAINER)
        scan_s = time.thread_time() - begun_s
    finally:
        VerificationLog.append = append  # type: ignore[method-assign]
    assert report.committed, report.tripped_reason
    assert len(spent_s) == 1, "one entry for one scan"
    return spent_s[0], scan_s
