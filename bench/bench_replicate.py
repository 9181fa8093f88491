"""Pushing replicas over loopback: against a bare gRPC stream of equal messages in the same run.

Source and target are processes of their own with stores on a real file system. BENCH_REPLICATE_MIB
says how much the large container holds (1,024), BENCH_REPLICATE_BLOCKS how many small blocks the
other has (50,000), BENCH_REPLICATE_FOLDER where (the temporary folder).
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bench.measure import Measure, at_least, at_most
from bench.replicate_ends import MIB
from bench.scan_world import Shape, fill
from merkle.replica import ContainerId
from tests.support.page_cache import cached_pages, drop_pages

LARGE: Final = ContainerId(1)
SMALL: Final = ContainerId(2)
CHUNKS_PER_BLOCK: Final = 32
CHUNK_BYTES: Final = 4 * MIB
SMALL_BYTES: Final = 4_000
ROUNDS: Final = 3
SMALL_ROUNDS: Final = 3
RATIO_MIN: Final = 0.8
SMALL_PER_S_MIN: Final = 20_000
PEAK_MIB_MAX: Final = 200
CACHED_SHARE_MAX: Final = 0.01
PAGE_BYTES: Final = 4_096


class End:
    """One end of the transfers, told by lines."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.replicate_ends", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hello = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, line: str) -> dict[str, Any]:
        """Tell it a line, return its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


def measures() -> list[Measure]:
    """Measure both containers."""
    parent = os.environ.get("BENCH_REPLICATE_FOLDER")
    large_mib = int(os.environ.get("BENCH_REPLICATE_MIB", "1024"))
    small_count = int(os.environ.get("BENCH_REPLICATE_BLOCKS", "50000"))
    with tempfile.TemporaryDirectory(prefix="suture-bench-", dir=parent) as directory:
        folder = Path(directory)
        prepare(folder / "source", large_mib, small_count)
        with (
            End("target", str(folder / "target")) as target,
            End(
                "source",
                str(folder / "source"),
                f"127.0.0.1:{target.hello['port']}",
                f"127.0.0.1:{target.hello['sink']}",
            ) as source,
        ):
            return [
                *large(source, target, folder, large_mib),
                *small(source, target, small_count),
            ]


def prepare(folder: Path, large_mib: int, small_count: int) -> None:
    """Fill the source's store."""
    chunk_count = max(1, large_mib * MIB // CHUNK_BYTES)
    per_block = min(CHUNKS_PER_BLOCK, chunk_count)
    fill(folder, LARGE, Shape(chunk_count // per_block, per_block, CHUNK_BYTES))
    fill(folder, SMALL, Shape(small_count, 1, SMALL_BYTES))


def large(source: End, target: End, folder: Path, large_mib: int) -> list[Measure]:
    """Push the large container, in turns with the bare stream."""
    own_s, bare_s = [], []
    chunks = chunks_of(folder / "source", LARGE)
    for end in (source, target):
        end.ask("clear")
    cached_share = 0.0
    for _ in range(ROUNDS):
        bare_s.append(source.ask(f"bare {large_mib * MIB}")["s"])
        drop(chunks)
        own_s.append(source.ask(f"push {LARGE}")["s"])
        here = Path(target.ask(f"path {LARGE}")["path"])
        cached_share = max(cached_share, cached(chunks), cached(here))
        target.ask(f"delete {LARGE}")
    ratio = statistics.median(bare_s) / statistics.median(own_s)
    speed = large_mib / statistics.median(own_s)
    bare_speed = large_mib / statistics.median(bare_s)
    peaks = [end.ask("rss")["peak_mib"] for end in (source, target)]
    return [
        Measure("replicate large: speed", speed, "MiB/s", f"bare stream {bare_speed:,.0f} MiB/s"),
        at_least("replicate large: of a bare stream", ratio, "x", RATIO_MIN),
        at_most("replicate large: peak memory, source", peaks[0], "MiB", PEAK_MIB_MAX),
        at_most("replicate large: peak memory, target", peaks[1], "MiB", PEAK_MIB_MAX),
        at_most("replicate large: left in page cache", cached_share, "share", CACHED_SHARE_MAX),
    ]


def small(source: End, target: End, small_count: int) -> list[Measure]:
    """Push the container of small blocks."""
    taken_s = []
    for end in (source, target):
        end.ask("clear")
    for _ in range(SMALL_ROUNDS):
        taken_s.append(source.ask(f"push {SMALL}")["s"])
        target.ask(f"delete {SMALL}")
    per_s = small_count / statistics.median(taken_s)
    peaks = [end.ask("rss")["peak_mib"] for end in (source, target)]
    return [
        at_least("replicate small: blocks", per_s, "1/s", SMALL_PER_S_MIN),
        at_most("replicate small: peak memory, source", peaks[0], "MiB", PEAK_MIB_MAX),
        at_most("replicate small: peak memory, target", peaks[1], "MiB", PEAK_MIB_MAX),
    ]


def chunks_of(folder: Path, container_id: ContainerId) -> Path:
    """Return where the block files of a replica are."""
    [found] = folder.glob(f"hdds/*/current/*/{container_id}/chunks")
    return found


def drop(chunks: Path) -> None:
    """Drop the files from the page cache."""
    for path in chunks.iterdir():
        drop_pages(path)


def cached(chunks: Path) -> float:
    """Return the share of the files that is in the page cache."""
    pages = sum(cached_pages(path) for path in chunks.iterdir())
    return pages * PAGE_BYTES / max(1, sum(path.stat().st_size for path in chunks.iterdir()))
