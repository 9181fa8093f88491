"""Measures scans of cold replicas against an equivalent C program and common checksummers.

`bench/c/scan.c` reads with O_DIRECT and computes CRC32C for every 16 KiB, with the processor's
instruction or, like the agent's library, by folding 512 bits at a time where the processor can: the
minimum cost of a scan. All are run in alternation over the same files of a real volume, the agent
in a separate process, through `scan_replica` and the store's reader. The bound is on the
instruction; the distance to the folding program is shown beside it. Two bounds are wider on an
x86-64-v3 without AVX-512, where a CRC costs twice as much; the first line shows the processor's
features.

The scan of a container in which every chunk of 1 MiB has 64 wrong bytes is compared with the scan
of the same container without damage.

BENCH_SCAN_MIB is the size of the large containers (1,024), BENCH_SCAN_FOLDER the place (the
temporary folder). Needs a C compiler as `cc`; `b3sum` (Debian's package of that name) is omitted if
absent.
"""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.measure import ROUNDS_DEFAULT, Measure, at_least, at_most
from bench.scans import scan_own
from bench.scans.scan_world import LIST, SUMS, WARM_UP, Shape, fill
from merkle.replica import ContainerId
from scanner.finding import Verdict
from tests.support.faults.flips import (
    Lies,
    flip_in_memory,
    flip_in_system_calls,
    flip_on_disk,
    stored_replica,
)
from tests.support.faults.page_cache import cached_pages, drop_pages

C_SOURCE: Final = Path(__file__).parents[1] / "c" / "scan.c"
C_PROGRAM: Final = C_SOURCE.parent / "bin" / "scan"
LARGE: Final = (ContainerId(1), ContainerId(2))  # one per worker
SMALL: Final = ContainerId(3)
FINE: Final = ContainerId(4)  # as many bytes as a large one, in chunks of 64 KiB
WHOLE, DAMAGED = ContainerId(5), ContainerId(6)  # as many bytes, in chunks of 1 MiB
DAMAGE_BYTES: Final = 64
SMALL_SHAPE: Final = Shape(50_000, 1, 10_000)
CHUNKS_PER_BLOCK: Final = 32
MIB: Final = 1024**2
GB: Final = 1e9
PAGE_BYTES: Final = 4_096
SMALL_ROUNDS: Final = 5
SUM_ROUNDS: Final = 9
SUBPROCESS_TIMEOUT_S: Final = 300

CPU_RATIO_MAX: Final = 1.5
FINE_RATIO_MAX: Final = 1.5
DAMAGED_TIME_RATIO_MAX: Final = 3.0
DAMAGED_CPU_RATIO_MAX: Final = 6.0  # 4.3 on an idle machine, 5.2 beside other programs
SPEED_RATIO_MIN: Final = 0.9
SMALL_BLOCKS_PER_S_MIN: Final = 20_000
FOLDING_FLAGS: Final = frozenset({"avx512f", "avx512bw", "vpclmulqdq"})
FOLDS: Final = set(Path("/proc/cpuinfo").read_text().split()) >= FOLDING_FLAGS
"""True if this processor folds 512 bits at a time, as the agent's library then does."""
ON: Final = "with AVX-512" if FOLDS else "without AVX-512"

SMALL_RATIO_MAX: Final = 1.3 if FOLDS else 1.4
CACHED_SHARE_MAX: Final = 0.01
MEMORY_FLIPS: Final = 100_000
SYSTEM_CALL_SCANS: Final = 300  # of a hundred blocks, with every second read corrupted
DISK_FLIPS: Final = 1_000
CHECKSUMMERS: Final = (
    (("b3sum", "--num-threads", "1"), 4.0),
    (("md5sum",), 10.0 if FOLDS else 6.0),
)


@dataclass(frozen=True, slots=True)
class Run:
    """The cost of one run."""

    length_bytes: int
    files: int
    wall_s: float
    cpu_s: float

    @property
    def cpu_s_per_gb(self) -> float:
        """The processor seconds per GB."""
        return self.cpu_s / self.length_bytes * GB

    @property
    def bytes_per_s(self) -> float:
        """The speed of the run."""
        return self.length_bytes / self.wall_s


def measures() -> list[Measure]:
    """Measure everything; takes some five minutes on two cores."""
    compile_program()
    mib = int(os.environ.get("BENCH_SCAN_MIB", "1024"))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_SCAN_FOLDER")) as folder:
        volume = Path(folder) / "volume"
        blocks = max(1, mib * MIB // len(LARGE) // (CHUNKS_PER_BLOCK * 4 * MIB))
        large = [fill(volume, one, Shape(blocks, CHUNKS_PER_BLOCK, 4 * MIB)) for one in LARGE]
        fill(volume, FINE, Shape(blocks * CHUNKS_PER_BLOCK // 4, 256, 64 * 1024))
        middle = [fill(volume, one, Shape(blocks * 8, 16, MIB)) for one in (WHOLE, DAMAGED)]
        damage_chunks(middle[-1], MIB)
        small = fill(volume, SMALL, SMALL_SHAPE)
        fill(volume, WARM_UP, Shape(2, 2, 4 * MIB))
        files = sorted(path for folder in large for path in folder.iterdir())
        return [
            Measure("scan: bits that a CRC folds at once", 512 if FOLDS else 64, "bits", ON),
            *against_c(volume, large),
            *small_chunks(volume),
            *damaged_chunks(volume, blocks * 8 * 16),
            *small_blocks(volume, small),
            *against_checksummers(volume, files),
            *page_cache(volume, files),
            *flips(Path(folder)),
        ]


def compile_program() -> None:
    """Compile the C program for this processor."""
    C_PROGRAM.parent.mkdir(exist_ok=True)
    command = ["cc", "-O3", "-march=native", "-pthread", "-o", str(C_PROGRAM), str(C_SOURCE)]
    subprocess.run(command, check=True, timeout=SUBPROCESS_TIMEOUT_S)


def against_c(volume: Path, large: list[Path]) -> list[Measure]:
    """Measure the processor time and the speed of scans of large chunks, compared with the C
    program, with two workers each."""
    parent = joined_list(large)
    own, plain, folding = in_turns(
        lambda: run_own(volume, *LARGE, workers=2),
        lambda: run_c(parent, "-i", threads=2),
        lambda: run_c(parent, threads=2),
        rounds=ROUNDS_DEFAULT,
    )
    cpu = ratios(own, plain, lambda run: run.cpu_s_per_gb)
    cpu_folding = ratios(own, folding, lambda run: run.cpu_s_per_gb)
    speed = ratios(own, plain, lambda run: run.bytes_per_s)
    gb = f"{own[0].length_bytes / GB:.2f} GB, {len(own)} rounds"
    c_cpu = statistics.median(run.cpu_s_per_gb for run in plain)
    folding_cpu = statistics.median(run.cpu_s_per_gb for run in folding)
    c_speed = statistics.median(run.bytes_per_s for run in plain) / GB
    own_cpu = statistics.median(run.cpu_s_per_gb for run in own)
    own_speed = statistics.median(run.bytes_per_s for run in own) / GB
    compared = f"{c_cpu:.4f}, C program; folding {folding_cpu:.4f}"
    return [
        Measure(f"scan cpu, {gb}", own_cpu, "cpu s/GB", compared),
        at_most(
            f"scan cpu ratio ({min(cpu):.2f} to {max(cpu):.2f})",
            statistics.median(cpu),
            "x",
            CPU_RATIO_MAX,
            compared_with="C program",
        ),
        Measure(
            f"the same ({min(cpu_folding):.2f} to {max(cpu_folding):.2f})",
            statistics.median(cpu_folding),
            "x",
            "C program, folding",
        ),
        Measure("scan speed, two workers", own_speed, "GB/s", f"{c_speed:.2f}, C program"),
        at_least(
            f"scan speed ratio ({min(speed):.2f} to {max(speed):.2f})",
            statistics.median(speed),
            "x",
            SPEED_RATIO_MIN,
            compared_with="C program",
        ),
    ]


def small_chunks(volume: Path) -> list[Measure]:
    """Measure the processor time of scans of 64 KiB chunks, compared with the same bytes in chunks
    of 4 MiB, with one worker each."""
    own, large = in_turns(
        lambda: run_own(volume, FINE),
        lambda: run_own(volume, LARGE[0]),
        rounds=ROUNDS_DEFAULT,
    )
    cpu = ratios(own, large, lambda run: run.cpu_s_per_gb)
    return [
        at_most(
            f"scan cpu, chunks of 64 KiB ({min(cpu):.2f} to {max(cpu):.2f})",
            statistics.median(cpu),
            "x",
            FINE_RATIO_MAX,
            compared_with="chunks of 4 MiB",
        )
    ]


def damage_chunks(folder: Path, chunk_bytes: int) -> None:
    """Overwrite some bytes of every chunk of a container."""
    for path in folder.iterdir():
        with path.open("r+b") as file:
            for offset in range(0, path.stat().st_size, chunk_bytes):
                file.seek(offset)
                file.write(os.urandom(DAMAGE_BYTES))


def damaged_chunks(volume: Path, count: int) -> list[Measure]:
    """Measure scans of a container in which all chunks are damaged, compared with one without
    damage, with one worker each."""
    damaged, whole = in_turns(
        lambda: run_own(volume, DAMAGED, wrong_count=count),
        lambda: run_own(volume, WHOLE),
        rounds=ROUNDS_DEFAULT,
    )
    found = []
    for what, ratio_max, taken in (
        ("time", DAMAGED_TIME_RATIO_MAX, ratios(damaged, whole, lambda run: run.wall_s)),
        ("cpu", DAMAGED_CPU_RATIO_MAX, ratios(damaged, whole, lambda run: run.cpu_s)),
    ):
        name = f"scan {what}, {count:,} chunks of 1 MiB, all damaged"
        name = f"{name} ({min(taken):.2f} to {max(taken):.2f})"
        ratio = statistics.median(taken)
        found.append(at_most(name, ratio, "x", ratio_max, compared_with="without damage"))
    return found


def ratios(mine: list[Run], theirs: list[Run], number: Callable[[Run], float]) -> list[float]:
    """Return the ratios of a figure in the runs `mine` and `theirs`, with one value per round."""
    return [number(one) / number(other) for one, other in zip(mine, theirs, strict=True)]


def small_blocks(volume: Path, chunks: Path) -> list[Measure]:
    """Measure scans of 50,000 blocks of 10 KB, compared with the C program, with one worker each.
    One of the two bounds on the speed must hold, and the bound on the processor time."""
    own, plain = in_turns(
        lambda: run_own(volume, SMALL),
        lambda: run_c(chunks.parent, threads=1),
        rounds=SMALL_ROUNDS,
    )
    found = ratios(own, plain, lambda run: run.wall_s)
    rate = statistics.median(run.files / run.wall_s for run in own)
    c_rate = statistics.median(run.files / run.wall_s for run in plain)
    ratio = statistics.median(found)
    cpu = ratios(own, plain, lambda run: run.cpu_s)
    own_us, c_us = (
        statistics.median(1e6 * run.cpu_s / run.files for run in side) for side in (own, plain)
    )
    holds = rate >= SMALL_BLOCKS_PER_S_MIN or ratio <= SMALL_RATIO_MAX
    bound = f"20,000/s or {SMALL_RATIO_MAX:g} x"
    return [
        Measure("small blocks, one worker", rate, "blocks/s", f"{c_rate:,.0f}, C program"),
        Measure(
            f"small blocks ratio ({min(found):.2f} to {max(found):.2f})",
            ratio,
            "x",
            "C program",
            bound,
            holds,
        ),
        Measure("small blocks: processor time", own_us, "us/file", f"{c_us:.1f}, C program"),
        at_most(
            f"small blocks cpu ratio ({min(cpu):.2f} to {max(cpu):.2f})",
            statistics.median(cpu),
            "x",
            CPU_RATIO_MAX,
            compared_with="C program",
        ),
    ]


def against_checksummers(volume: Path, files: list[Path]) -> list[Measure]:
    """Measure processor time against programs that read through the page cache, from cold.

    One worker and one thread: two that share a core's units would both look more expensive than
    they are. The C program runs beside them, because its cost is the minimum of any scan: if its
    own distance is shorter than the bound, the bound is out of reach on this machine. b3sum maps
    its files, which costs it next to nothing if the kernel's page cache has large folios.
    """
    parent = joined_list(sorted({path.parent for path in files}))
    commands = [(command, low) for command, low in CHECKSUMMERS if shutil.which(command[0])]
    for command, _ in CHECKSUMMERS:
        if shutil.which(command[0]) is None:
            print(f"{command[0]} is not installed: not compared", file=sys.stderr)
    own, plain, *others = in_turns(
        lambda: run_own(volume, *LARGE),
        lambda: run_c(parent, threads=1),
        *(partial(run_checksummer, command, files) for command, _ in commands),
        rounds=SUM_ROUNDS,
    )
    for path in files:
        drop_pages(path)
    taken = []
    for (command, factor_min), theirs in zip(commands, others, strict=True):
        found = ratios(theirs, own, lambda run: run.cpu_s_per_gb)
        c_ratio = statistics.median(ratios(theirs, plain, lambda run: run.cpu_s_per_gb))
        own_cpu = statistics.median(run.cpu_s_per_gb for run in own)
        their_cpu = statistics.median(run.cpu_s_per_gb for run in theirs)
        taken.append(
            at_least(
                f"scan cpu, {command[0]} by own ({their_cpu:.3f} by {own_cpu:.3f} s/GB, "
                f"{min(found):.1f} to {max(found):.1f})",
                statistics.median(found),
                "x",
                factor_min,
                compared_with=f"C program, folding: {c_ratio:.2f} x",
            )
        )
    return taken


def page_cache(volume: Path, files: list[Path]) -> list[Measure]:
    """Measure how much data a scan leaves in the page cache, and whether it evicts cached pages."""
    warm, cold = files[0], files[1:]
    for path in files:
        drop_pages(path)
    with warm.open("rb") as file:
        while file.read(MIB):
            pass
    warm_before = cached_pages(warm)
    run = run_own(volume, *LARGE)
    cold_pages = sum(path.stat().st_size for path in cold) // PAGE_BYTES
    share = sum(cached_pages(path) for path in cold) / cold_pages
    kept = cached_pages(warm) / warm_before
    size = f"{run.length_bytes / GB:.2f} GB"
    return [
        at_most(f"in the page cache after {size}", share, "share", CACHED_SHARE_MAX),
        at_least("of a cached file, still cached", kept, "share", 1.0),
    ]


def flips(folder: Path) -> list[Measure]:
    """Measure the verdicts on bits that are flipped in memory, in the results of system calls, and
    on the disk."""
    stored = stored_replica(folder / "medium")
    spoilt = folder / "spoilt"
    spoilt.mkdir()
    disk = flip_on_disk(stored, DISK_FLIPS)
    stored.close()
    name = f"of {disk.flip_count:,} flips on disk, {disk.warm_count} under warm cache"
    told = min(disk.found, disk.classed, disk.explained)
    return [
        condemned("in buffers", flip_in_memory(MEMORY_FLIPS)),
        condemned("in system calls", flip_in_system_calls(spoilt, SYSTEM_CALL_SCANS)),
        at_least(f"{name}: found, classed, explained", told, "flips", disk.flip_count),
        at_most("findings about anything else", disk.other_findings, "findings", 0),
    ]


def condemned(where: str, lies: Lies) -> Measure:
    """Return a measure of the intact chunks with the verdict CORRUPT. The bound is 0."""
    name = f"CORRUPT for {lies.flip_count:,} flips {where}"
    return at_most(name, lies.verdicts[Verdict.CORRUPT], "verdicts", 0)


def in_turns(*programs: Callable[[], Run], rounds: int) -> list[list[Run]]:
    """Run each program once per round, in alternating order; return the runs of each program."""
    runs: list[list[Run]] = [[] for _ in programs]
    for index in range(rounds):
        order = list(zip(programs, runs, strict=True))
        for program, taken in order if index % 2 == 0 else reversed(order):
            taken.append(program())
    return runs


def joined_list(folders: list[Path]) -> Path:
    """Combine the file lists and checksums of several containers into one list and one file of
    checksums; return the folder of both."""
    parent = folders[0].parents[1]
    lines: list[str] = []
    sums = b""
    for folder in folders:
        name = folder.parent.name
        for line in (folder.parent / LIST).read_text().splitlines():
            length, path = line.split(" ")
            lines.append(f"{length} {name}/{path}\n")
        sums += (folder.parent / SUMS).read_bytes()
    (parent / LIST).write_text("".join(lines))
    (parent / SUMS).write_bytes(sums)
    return parent


def run_own(volume: Path, *containers: ContainerId, workers: int = 1, wrong_count: int = 0) -> Run:
    """Run the agent's scan of containers in a separate process; return the cost."""
    words = (str(volume), str(workers), *map(str, containers))
    command = (sys.executable, "-m", scan_own.__name__, *words)
    return run_json(*command, wrong_count=wrong_count)


def run_c(folder: Path, *options: str, threads: int) -> Run:
    """Run the C program over the file list in a folder; return the cost."""
    return run_json(
        str(C_PROGRAM), *options, "-t", str(threads), str(folder / LIST), str(folder / SUMS)
    )


def run_json(*command: str, wrong_count: int = 0) -> Run:
    """Run a program that prints its cost as JSON; return the cost. Fail unless it found
    `wrong_count` errors."""
    ran = subprocess.run(command, check=True, capture_output=True, timeout=SUBPROCESS_TIMEOUT_S)
    fields = json.loads(ran.stdout)
    assert fields["wrong"] == wrong_count, fields
    return Run(fields["bytes"], fields["files"], fields["wall_s"], fields["cpu_s"])


def run_checksummer(command: tuple[str, ...], files: list[Path]) -> Run:
    """Drop files from the page cache, and run a program that reads them through the page cache;
    return the cost."""
    for path in files:
        drop_pages(path)
    before, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [*command, *map(str, files)],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=SUBPROCESS_TIMEOUT_S,
    )
    wall_s = time.perf_counter() - wall_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    length_bytes = sum(path.stat().st_size for path in files)
    return Run(length_bytes, len(files), wall_s, cpu_s)
