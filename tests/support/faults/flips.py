"""Bit flips: in memory between the disk and the scan, and on the disk itself.

    python -m tests.support.faults.flips FOLDER SCANS

The command scans a real replica in a child process, into which a library that flips bits is
preloaded, and prints the findings.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from agent.store.files import blockfile
from agent.store.scan_reader import StoreReplicaReader
from scanner.finding import Forensic, ScanFinding, Verdict
from tests.support.storage.replica_reader import AlteredReader, MemoryReplica, flipping, noise, scan
from tests.support.storage.stored_replica import CONTAINER, StoredReplica

C_SOURCE = Path(__file__).parents[1] / "c" / "flip.c"
SHARE_OF_1024 = 512  # of 1,024 reads, the number that get a flipped bit, re-reads included
BLOCK_COUNT = 8
CHUNK_BYTES = 2_000
STORED_BLOCKS = 100
STORED_CHUNK_BYTES = 10_000
COMPILE_TIMEOUT_S = 60
CHILD_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Lies:
    """The number of bits flipped in memory, and the verdicts of the scans."""

    flip_count: int
    verdicts: Counter[Verdict]


def failing_memory(monkeypatch: pytest.MonkeyPatch, *, good: Container[int] = ()) -> list[int]:
    """From now on, flip one bit in the result of each read of a disk, except for the reads with the
    numbers `good`. Return a list that gets the number of each read, starting at 1."""
    reads: list[int] = []
    for name in ("read", "read_past_cache"):
        real = getattr(blockfile, name)

        def read(*place: object, real: Callable[..., bytes] = real) -> bytes:
            data = bytearray(real(*place))
            reads.append(len(reads) + 1)
            if data and reads[-1] not in good:
                data[reads[-1] % len(data)] ^= 1
            return bytes(data)

        monkeypatch.setattr(blockfile, name, read)
    return reads


def flip_in_memory(flip_count: int) -> Lies:
    """Scan intact replicas while bits are flipped in the results of first reads and re-reads, until
    `flip_count` bits were flipped."""
    replica = MemoryReplica()
    for block_id in range(1, BLOCK_COUNT + 1):
        pieces = [noise(CHUNK_BYTES, block_id), noise(CHUNK_BYTES, 100 + block_id)]
        replica.put(block_id, *pieces[: 1 + block_id % 2])
    tree = replica.metadata_tree()
    verdicts: Counter[Verdict] = Counter()
    flipped = seed = 0

    def counted(seed: int, share: float) -> object:
        flip = flipping(seed, share)

        def read(data: bytes) -> bytes:
            nonlocal flipped
            altered = flip(data)
            flipped += altered != data
            return altered

        return read

    while flipped < flip_count:
        first, again = counted(2 * seed, 1.0), counted(2 * seed + 1, (seed % 5) / 4)
        outcome = scan(AlteredReader(replica, first, again))  # type: ignore[arg-type]
        verdicts.update(finding.verdict for finding in outcome.findings)
        assert tree == outcome.tree, "a good chunk was taken for damaged"
        seed += 1
    return Lies(flipped, verdicts)


def compile_flipper(folder: Path) -> Path:
    """Compile the library that flips bits in the results of read system calls; return its path."""
    library = folder / "flip.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(C_SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=COMPILE_TIMEOUT_S)
    return library


def flip_in_system_calls(folder: Path, scan_count: int) -> Lies:
    """Scan a real replica in a process in which every second read has a flipped bit."""
    count = folder / "flipped"
    environment = {
        **os.environ,
        "LD_PRELOAD": str(compile_flipper(folder)),
        "FLIP_SHARE": str(SHARE_OF_1024),
        "FLIP_SEED": "1",
        "FLIP_COUNT": str(count),
    }
    module = "tests.support.faults.flips"
    ran = subprocess.run(
        [sys.executable, "-m", module, str(folder / "volume"), str(scan_count)],
        cwd=Path(__file__).parents[3],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
        timeout=CHILD_TIMEOUT_S,
    )
    found = json.loads(ran.stdout)
    return Lies(int(count.read_text()), Counter({Verdict(name): n for name, n in found.items()}))


def stored_replica(folder: Path) -> StoredReplica:
    """Return a closed replica of many small blocks on a real file system."""
    folder.mkdir(exist_ok=True)
    stored = StoredReplica(folder)
    stored.store.create_container(CONTAINER)
    for block_id in range(1, STORED_BLOCKS + 1):
        stored.put(block_id, *[STORED_CHUNK_BYTES] * (1 + block_id % 2))
    stored.store.close_container(CONTAINER, bcsid=0, force=True)
    return stored


def scan_disk(stored: StoredReplica) -> tuple[ScanFinding, ...]:
    """Read the replica as a scan does, without committing a result."""
    reader = StoreReplicaReader(stored.store, CONTAINER, stored.store.begin_scan(CONTAINER))
    try:
        return scan(reader).findings
    finally:
        reader.close()


@dataclass(frozen=True, slots=True)
class DiskFlips:
    """The number of bits flipped on the disk, and how many of these flips scans found, classified
    and explained."""

    flip_count: int
    warm_count: int
    found: int
    classed: int
    explained: int
    other_findings: int


def flip_on_disk(stored: StoredReplica, flip_count: int, seed: int = 1) -> DiskFlips:
    """Flip bits in block files on the disk, some with a warm page cache, and scan the replica.

    Each scan has at most one flip per block to find. The blocks are repaired after each scan.
    """
    random = Random(seed)
    total = warm = found = classed = explained = other = 0
    while total < flip_count:
        count = min(flip_count - total, STORED_BLOCKS)
        flips: dict[int, tuple[int, int]] = {}
        for block_id in random.sample(range(1, STORED_BLOCKS + 1), count):
            path = stored.file(block_id)
            at, bit = random.randrange(path.stat().st_size), random.randrange(8)
            if is_warm := (total + len(flips)) % 2 == 0:
                path.read_bytes()
            flip(path, at, bit, keep_cached=is_warm)
            warm += is_warm
            flips[block_id] = at, bit
        findings = scan_disk(stored)
        for finding in findings:
            at, bit = flips.get(finding.block_id, (-1, -1))
            is_it = finding.offset <= at < finding.offset + finding.length_bytes
            found += is_it and finding.verdict is Verdict.CORRUPT
            classed += is_it and finding.forensic is Forensic.SINGLE_BIT
            explained += is_it and f"bit {bit} of byte {at} is flipped" in finding.evidence
            other += not is_it
        for block_id, (at, bit) in flips.items():
            flip(stored.file(block_id), at, bit, keep_cached=False)
        total += count
    return DiskFlips(total, warm, found, classed, explained, other)


def flip(path: Path, at: int, bit: int, *, keep_cached: bool) -> None:
    """Flip one bit of a file, and sync the file. Without `keep_cached`, also drop its pages from
    the page cache."""
    fd = os.open(path, os.O_RDWR)
    try:
        (byte,) = os.pread(fd, 1, at)
        os.pwrite(fd, bytes([byte ^ 1 << bit]), at)
        os.fdatasync(fd)
        if not keep_cached:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def main(folder: Path, scan_count: int) -> None:
    """Scan a new replica again and again; print how often each verdict was given."""
    stored = stored_replica(folder)
    verdicts: Counter[str] = Counter()
    for _ in range(scan_count):
        verdicts.update(finding.verdict.value for finding in scan_disk(stored))
    stored.close()
    sys.stdout.write(json.dumps(verdicts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
