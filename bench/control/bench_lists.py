"""Measures long lists in the command line: time to the first row, and memory of the client.

A control plane has a million containers and a million keys. `suture ls` and `suture scm containers`
list all of them, as tables and as JSON, into a pipe.

    SCM_CONTAINERS   number of containers, and of keys (1000000)
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import lmdb

from bench.control.bench_scm import CONTAINER_COUNT, MAP_BYTES, append, write_state
from bench.measure import Measure, at_most
from scm.state.entities import Key, KeyBlock
from scm.state.tables.key_table import KeyTable
from tests.support.control.scm_process import ScmProcess

COMMANDS: Final = (
    ("ls",),
    ("ls", "--json"),
    ("scm", "containers"),
    ("scm", "containers", "--json"),
)
FIRST_ROW_S_MAX: Final = 1.0
MEMORY_MB_MAX: Final = 150.0


def measures() -> list[Measure]:
    """Start a control plane on the state, and list its keys and containers."""
    with tempfile.TemporaryDirectory(prefix="suture-lists-") as scratch:
        path = Path(scratch)
        write_state(path)
        write_keys(path)
        process = ScmProcess.start(path, heartbeat_interval_ms=1_000, session_idle_ms=86_400_000)
        try:
            return [each for words in COMMANDS for each in listed(words, process.address)]
        finally:
            process.kill()


def write_keys(path: Path) -> None:
    """Write a key with one block in each container."""
    table = KeyTable()
    keys = (
        Key(
            f"folder{number % 1000:03d}/file{number:09d}",
            10**6,
            number,
            (KeyBlock(number, number, 1, 10**6),),
        )
        for number in range(1, CONTAINER_COUNT + 1)
    )
    with lmdb.open(str(path / "state"), map_size=MAP_BYTES, max_dbs=16) as environment:
        append(environment, table, sorted(keys, key=lambda key: table.key_bytes(key.name)))


def listed(words: Sequence[str], address: str) -> list[Measure]:
    """Run a command; measure its first row, its end and its memory."""
    name = f"suture {' '.join(words)}, {CONTAINER_COUNT:,} rows, "
    began_s = time.perf_counter()
    with subprocess.Popen(
        [Path(sys.executable).parent / "suture", *words, "--scm", address], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        while not any(mark in process.stdout.readline() for mark in (b"file0", b"CLOSED")):
            assert process.poll() is None, f"{name}no row"
        first_s = time.perf_counter() - began_s
        memory_mb = 0.0
        while process.stdout.read(2**16):
            memory_mb = max(memory_mb, peak_mb(process.pid))
    assert process.returncode == 0, name
    return [
        at_most(f"{name}first row", first_s, "s", FIRST_ROW_S_MAX),
        at_most(f"{name}memory", memory_mb, "MB", MEMORY_MB_MAX),
        Measure(f"{name}complete", time.perf_counter() - began_s, "s"),
    ]


def peak_mb(pid: int) -> float:
    """Return the largest memory of a process so far; 0 if the process has ended."""
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else 0.0
