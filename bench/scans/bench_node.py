"""Measures a datanode with 100,000 containers: start, answers, idle load, memory.

The replicas are closed and empty, because the cost of each before a byte is read is measured. They
are created once, below bench/out, which takes minutes. Each run marks them as verified at their
last slot, so that some are due every minute, as on a host that meets its interval. No control plane
answers the agent. It is measured twice: with its scan window closed, and with it open. Then, the
rebuild of a lost index is measured, with LOST_COUNT replicas of one block each.

    SUTURE_BENCH_CONTAINERS     another number of containers
    SUTURE_BENCH_VOLUME         a volume to use, with the ids "bench" of datanode and cluster
"""

import json
import math
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.store.files.layout import VolumeLayout
from agent.store.index.environment import Index
from agent.store.index.rows import ReplicaRow
from agent.store.index.transactions import IndexChange
from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from bench.measure import Measure, at_most, duration_s
from merkle.checksum import window_checksums
from merkle.replica import (
    WINDOW_BYTES_DEFAULT,
    Bcsid,
    BlockData,
    BlockId,
    ChecksumType,
    ChunkInfo,
    ContainerId,
)
from scanner.schedule import PERIOD_SHARE, phase_of
from suture.terminal.datanode_queries import fetch_status
from suture.wire.clients.peer import Peer

COUNT = int(os.environ.get("SUTURE_BENCH_CONTAINERS", "100000"))
OUT = Path(__file__).resolve().parents[1] / "out"
SUTURE = "from agent.cli.start import main; main()"  # as in the installed script
LOST_COUNT = min(COUNT, 10_000)
LOST = f"{LOST_COUNT} containers"
BLOCK = bytes(4096)
POLL_S = 0.1
FILLERS = 8
ANSWERS = 9
LOOK_S = 10.0
SETTLED_S = 0.5  # of processor time between two polls: the first metadata scan is over
LOOKS_MAX = 60
IDLE_S = 150.0  # longer than the period of all background work
MIB = 1024**2
FORGET_PEAK = "5"  # proc(5), clear_refs: resets the peak to the resident memory
INTERVAL_S = 7 * 86_400
MANY = f"{COUNT} containers"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def measures() -> list[Measure]:
    """Return the cost of an idle datanode with many containers, and its response times."""
    volume = Path(os.environ.get("SUTURE_BENCH_VOLUME", OUT / f"node-{COUNT}"))
    fill(volume)
    call_verified(volume)
    with agent_on(volume, f'windows = ["{far_window()}"]\n') as (pid, address, start_s):
        closed = [*started(pid, start_s), *answered(address), *idle(pid, "window closed")]
    with agent_on(volume) as (pid, _, _):
        opened = idle(pid, "window open")
    return [*closed, *opened, *rebuilt()]


@contextmanager
def agent_on(volume: Path, scan: str = "") -> Iterator[tuple[int, str, float]]:
    """Run an agent during the block; yield its process id, its address, and the seconds until it
    listened."""
    with tempfile.TemporaryDirectory(prefix="suture-bench-") as scratch:
        config = Path(scratch) / "agent.toml"
        config.write_text(
            '[node]\nlisten = "127.0.0.1:0"\nscm = "127.0.0.1:1"\n'
            f"[storage]\nvolumes = [{json.dumps(str(volume))}]\nreserve_bytes = 0\n"
            f"[scan]\nstart_jitter_s = 0\n{scan}"
            '[observe]\nlisten = ""\n'
        )
        with (Path(scratch) / "log").open("wb") as log:
            began_s = time.monotonic()
            agent = subprocess.Popen(
                [sys.executable, "-m", "agent.main", "--config", config],
                stdout=subprocess.PIPE,
                stderr=log,
            )
            try:
                assert agent.stdout is not None
                address = json.loads(agent.stdout.readline())["address"]
                yield agent.pid, address, time.monotonic() - began_s
            finally:
                agent.terminate()
                agent.wait()


def started(pid: int, start_s: float) -> list[Measure]:
    """Measure an agent that has just started to listen."""
    return [
        at_most("agent start, wall", start_s, "s", 5, compared_with=MANY),
        Measure("agent start, processor", cpu_s(pid), "s", MANY),
    ]


def answered(address: str) -> list[Measure]:
    """Measure `suture status`, and the agent's share of it."""
    words = [sys.executable, "-c", SUTURE, "status", "--datanode", address]
    first_s = duration_s(lambda: answer(words))
    children_s = children_cpu_s()
    rest_s = statistics.median(duration_s(lambda: answer(words)) for _ in range(ANSWERS))
    answer_cpu_s = (children_cpu_s() - children_s) / ANSWERS
    with Peer(address) as peer:
        fetch_status(peer)
        agent_s = statistics.median(duration_s(lambda: fetch_status(peer)) for _ in range(ANSWERS))
    return [
        Measure("suture status, first", first_s * 1000, "ms", MANY),
        at_most("suture status", rest_s * 1000, "ms", 300, compared_with=MANY),
        Measure("suture status, processor", answer_cpu_s * 1000, "ms", MANY),
        Measure("suture status, the agent's part", agent_s * 1000, "ms", MANY),
    ]


def rebuilt() -> list[Measure]:
    """Measure an agent whose volume has lost its index: its start, and the rebuild."""
    template = OUT / f"lost-{LOST_COUNT}"
    fill(template, LOST_COUNT, BLOCK)
    off = "enabled = false\nwatch = false\n"
    with tempfile.TemporaryDirectory(dir=OUT) as scratch:
        volume = Path(scratch) / "volume"
        shutil.copytree(template, volume)
        with agent_on(volume, off) as (pid, _, _):
            usual_s = cpu_s(pid)
        shutil.rmtree(VolumeLayout(volume, "bench").database)
        with agent_on(volume, off) as (pid, address, start_s), Peer(address) as peer:
            began_s = time.monotonic()
            while any(known.rebuild_count for known in peer.status().volumes):
                time.sleep(POLL_S)
            rebuild_s = time.monotonic() - began_s
            cpu_ms = (cpu_s(pid) - usual_s) * 1000
            states = dict(peer.status().containers_by_state)
    assert states == {"UNHEALTHY": LOST_COUNT}, states
    return [
        at_most("lost index: agent start, wall", start_s, "s", 5, compared_with=LOST),
        Measure("lost index: rebuild, wall", rebuild_s * 1000 / LOST_COUNT, "ms/container", LOST),
        at_most(
            "lost index: rebuild, processor",
            cpu_ms / LOST_COUNT,
            "ms/container",
            3,
            compared_with=LOST,
        ),
    ]


def idle(pid: int, when: str) -> list[Measure]:
    """Measure an agent whose start-up work is done."""
    settle(pid)
    start_peak_mib = memory_bytes(pid, "VmHWM") / MIB
    Path(f"/proc/{pid}/clear_refs").write_text(FORGET_PEAK)
    before_s, began_s = cpu_s(pid), time.monotonic()
    time.sleep(IDLE_S)
    idle_percent = 100 * (cpu_s(pid) - before_s) / (time.monotonic() - began_s)
    memory_high = 80 + 1.5 * COUNT / 1024
    memory_mib, peak_mib = (memory_bytes(pid, name) / MIB for name in ("VmRSS", "VmHWM"))
    mapped_mib = mapped_index_bytes(pid) / MIB
    return [
        at_most(f"idle, {when}", idle_percent, "% of a core", 1, compared_with=MANY),
        at_most(f"memory, {when}", memory_mib, "MiB", memory_high, compared_with=MANY),
        at_most(f"memory, {when}, its peak", peak_mib, "MiB", memory_high, compared_with=MANY),
        Measure(f"memory, {when}, peak of the start", start_peak_mib, "MiB", MANY),
        Measure(f"memory, {when}: pages of the mapped index", mapped_mib, "MiB", MANY),
    ]


def settle(pid: int) -> None:
    """Wait until the agent's start-up work is done, in which every replica is checked once."""
    for _ in range(LOOKS_MAX):
        before_s = cpu_s(pid)
        time.sleep(LOOK_S)
        if cpu_s(pid) - before_s < SETTLED_S:
            return


def far_window() -> str:
    """Return a scan window of one hour that begins twelve hours from now, so that no scan runs."""
    hour = (time.gmtime().tm_hour + 12) % 24
    return f"{hour:02}:00-{(hour + 1) % 24:02}:00"


def fill(volume: Path, count: int = COUNT, block: bytes = b"") -> None:
    """Create the missing closed replicas, several at once, with one sync at the end. Thirteen syncs
    for each of a hundred thousand replicas would take longer than the benchmark may.

    Each replica has one block with the bytes `block`, or no block if it is empty.
    """
    volume.mkdir(parents=True, exist_ok=True)
    options = StoreOptions(reserve_bytes=0)
    store = ReplicaStore.open([volume], cluster_id="bench", datanode_id="bench", options=options)

    def make(container_id: int) -> None:
        store.create_container(ContainerId(container_id))
        if block:
            sums = window_checksums(ChecksumType.CRC32C, WINDOW_BYTES_DEFAULT, block)
            chunk = ChunkInfo(0, len(block), ChecksumType.CRC32C, WINDOW_BYTES_DEFAULT, sums)
            data = BlockData(BlockId(1), Bcsid(1), (chunk,))
            store.writer(ContainerId(container_id)).write_chunk(
                BlockId(1), chunk, block, commit=data
            )
        store.close_container(ContainerId(container_id), force=True)

    here = len(store.replica_ids())
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(FILLERS) as fillers:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _fd: None)
        for made in [fillers.submit(make, n) for n in range(here + 1, count + 1)]:
            made.result()
    store.close()
    os.sync()


def call_verified(volume: Path) -> None:
    """Mark every replica as read at its last slot."""
    period_s, now_s = PERIOD_SHARE * INTERVAL_S, time.time()
    index = Index(VolumeLayout(volume, "bench").database, map_bytes=StoreOptions().lmdb_map_bytes)

    def change(rows: IndexChange) -> None:
        for container_id, row in list(rows.replicas()):
            assert isinstance(row, ReplicaRow)
            phase = phase_of(container_id, "bench")
            at_s = (math.floor(now_s / period_s - phase) + phase) * period_s
            rows.put_replica(container_id, replace(row, data_scan_at_ms=int(at_s * 1000)))

    index.write(change)
    index.close()


def answer(words: list[str]) -> None:
    """Run a command as an operator does. Fail if its exit code reports a damaged or late
    datanode."""
    subprocess.run(words, check=True, capture_output=True)


def cpu_s(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def children_cpu_s() -> float:
    """Return the processor time of the finished commands."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def mapped_index_bytes(pid: int) -> int:
    """Return the part of a process's resident memory that consists of pages of the mapped index.
    These are page cache, which the kernel may reclaim at any time.
    """
    smaps = Path(f"/proc/{pid}/smaps").read_text()
    sizes_kib = re.findall(r"/data\.mdb\n(?:\w+: .*\n)*?Rss:\s+(\d+) kB", smaps)
    assert sizes_kib, "the index is not mapped"
    return sum(map(int, sizes_kib)) * 1024


def memory_bytes(pid: int, name: str) -> int:
    """Return the current memory of a process, `VmRSS`, or its peak, `VmHWM`."""
    match = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024
