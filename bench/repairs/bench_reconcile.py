"""Measures the repair of a damaged replica from its peers, against rsync on equal damage.

    reconcile    three real agents: one has the damage, found by a scan; a scripted control plane
                 tells it to reconcile with the two others
    rsync        a daemon serves whole files to a client (bench/repairs/rsync_daemon.py)

In each round both get the same damage at new places, all files are dropped from the page cache, and
the order alternates. Seconds are those that the agent reports for the reconcile, and those of
rsync's client from start to end; processor seconds are of both ends. Bytes are those that the
kernel counted on the agent's connections to its peers (TCP_INFO, through `ss`), and those that
rsync reports as sent and received. rsync reads everything to find the damage. A scan has found ours
before, and the work after the repair is included in its time. "read whole" is the same on an agent
that trusts no earlier read, so that a full read of the container follows.

BENCH_RECONCILE_MIB is the size of the containers in which chunks of 64 KiB or 1 MiB are damaged
(1,024), BENCH_RECONCILE_CHUNKS their number (1,000; of 1 MiB also a tenth of it, and one).
BENCH_RECONCILE_BLOCKS is the number of blocks of 9 kB in the others (30,000), of which as many, and
one, are damaged, BENCH_RECONCILE_ROUNDS the number of rounds (3), BENCH_RECONCILE_FOLDER the place.
"""

import os
import random
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.measure import Measure, at_most
from bench.repairs.rsync_daemon import RsyncDaemon, processor_s, rsync_program
from bench.scans.scan_world import CLUSTER, Shape, copy_volume, fill
from merkle.replica import ContainerId
from suture.runtime.durable import sync_all
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.control.scripted_scm import ScriptedScm
from tools.demo.cluster import Process

MIB: Final = 1024**2
CONTAINER: Final = ContainerId(1)
CHUNK_BYTES: Final = 64 * 1024
CHUNKS_PER_BLOCK: Final = 64
MIBS_PER_BLOCK: Final = 16  # of blocks with chunks of 1 MiB
SMALL_BYTES: Final = 9_000
PEERS: Final = ("peer1", "peer2")
NOBODY: Final = "127.0.0.1:9"
INTERVAL_MS: Final = 50
WAIT_S: Final = 300.0
TIME_RATIO_MAX: Final = 1.2
ONE_RATIO_MAX: Final = 0.1
BYTES_RATIO_MAX: Final = 1.05
SS: Final = "ss"
READ_WHOLE: Final = "[tasks]\nreconcile_proof_age_s = 0\n"


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of one repair. `tree_bytes` is the part of `wire_bytes` that is not chunk data."""

    seconds: float
    processor_s: float
    wire_bytes: int
    tree_bytes: int = 0


@dataclass(slots=True)
class Rounds:
    """The costs of all rounds with one kind of damage: of reconciles (`ours`), of reconciles with a
    full read (`whole`), and of rsync."""

    damaged_bytes: int
    ours: list[Spent] = field(default_factory=list)
    whole: list[Spent] = field(default_factory=list)
    rsync: list[Spent] = field(default_factory=list)

    def ratio(self) -> float:
        """Return the median ratio of the times of reconcile and rsync in the same round."""
        pairs = zip(self.ours, self.rsync, strict=True)
        return statistics.median(own.seconds / other.seconds for own, other in pairs)


def measures() -> list[Measure]:
    """Measure repairs of many damaged chunks of 64 KiB, of many small blocks, and of chunks of 1
    MiB."""
    rsync_program()
    parent = os.environ.get("BENCH_RECONCILE_FOLDER")
    size_mib = int(os.environ.get("BENCH_RECONCILE_MIB", "1024"))
    chunk_count = size_mib * MIB // CHUNK_BYTES
    damaged = int(os.environ.get("BENCH_RECONCILE_CHUNKS", "1000"))
    block_count = int(os.environ.get("BENCH_RECONCILE_BLOCKS", "30000"))
    rounds = int(os.environ.get("BENCH_RECONCILE_ROUNDS", "3"))
    spread = min(damaged, block_count)
    large = Shape(max(1, chunk_count // CHUNKS_PER_BLOCK), CHUNKS_PER_BLOCK, CHUNK_BYTES)
    small = Shape(block_count, 1, SMALL_BYTES)
    whole = Shape(max(1, size_mib // MIBS_PER_BLOCK), MIBS_PER_BLOCK, MIB)
    most = min(damaged, whole.block_count * whole.chunk_count)
    found: list[Measure] = []
    for name, shape, count, ratio_max, bytes_max in (
        (f"{damaged:,} chunks", large, damaged, TIME_RATIO_MAX, BYTES_RATIO_MAX),
        (f"{spread:,} blocks of {block_count:,}", small, spread, None, None),
        (f"one block of {block_count:,}", small, 1, ONE_RATIO_MAX, None),
        (f"{most:,} chunks of 1 MiB", whole, most, None, BYTES_RATIO_MAX),
        (f"{most // 10:,} chunks of 1 MiB", whole, most // 10, TIME_RATIO_MAX, BYTES_RATIO_MAX),
        ("one chunk of 1 MiB", whole, 1, ONE_RATIO_MAX, None),
    ):
        with tempfile.TemporaryDirectory(prefix="suture-bench-", dir=parent) as directory:
            with World(Path(directory), shape).running() as world:
                taken = world.repaired(count, rounds)
            found += told(f"reconcile {name}", taken, ratio_max, bytes_max)
    return found


def told(
    name: str, taken: Rounds, ratio_max: float | None, bytes_max: float | None
) -> Iterator[Measure]:
    """Yield the measures of one kind of damage. `bytes_max` is None for chunks of 9 kB, because
    the headers of the calls are a seventh of the bytes.
    """
    ours, whole, rsync = (
        Spent(
            statistics.median(spent.seconds for spent in kind),
            statistics.median(spent.processor_s for spent in kind),
            round(statistics.median(spent.wire_bytes for spent in kind)),
        )
        for kind in (taken.ours, taken.whole, taken.rsync)
    )
    least = max(one.wire_bytes / (taken.damaged_bytes + one.tree_bytes) for one in taken.ours)
    yield Measure(f"{name}: time", ours.seconds, "s", f"rsync {rsync.seconds:.3g}")
    if ratio_max is None:
        yield Measure(f"{name}: of rsync's time", taken.ratio(), "x")
    else:
        yield at_most(f"{name}: of rsync's time", taken.ratio(), "x", ratio_max)
    yield Measure(
        f"{name}: processor time", ours.processor_s, "s", f"rsync {rsync.processor_s:.3g}"
    )
    yield Measure(
        f"{name}: wire", ours.wire_bytes / MIB, "MiB", f"rsync {rsync.wire_bytes / MIB:,.2f}"
    )
    if bytes_max is None:
        yield Measure(f"{name}: of damage and tree", least, "x")
    else:
        yield at_most(f"{name}: of damage and tree", least, "x", bytes_max)
    yield Measure(f"{name}, read whole: time", whole.seconds, "s", f"rsync {rsync.seconds:.3g}")
    yield Measure(
        f"{name}, read whole: of rsync's time", whole.seconds / rsync.seconds, "x", "not paired"
    )


class World:
    """Three agents, and a folder for rsync, all with the same blocks."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._shape = shape
        self._folder = folder
        self._commands = 0
        self._mine = fill(folder / "mine", CONTAINER, shape)
        self._served = [self._copied(name) for name in PEERS]
        self._target = folder / "target"
        shutil.copytree(self._mine, self._target)

    def _copied(self, name: str) -> Path:
        """Copy the volume; return the path of the copy's blocks."""
        volume = self._folder / "mine"
        copy_volume(volume, self._folder / name, name)
        return self._folder / name / self._mine.relative_to(volume)

    @contextmanager
    def running(self) -> Iterator["World"]:
        """Run the agents, the control plane and the rsync daemon during the block."""
        with (
            ScriptedScm(INTERVAL_MS, CLUSTER) as self._scm,
            RsyncDaemon(self._served[0], self._folder) as self._rsync,
        ):
            self._agents = [self._agent(name, NOBODY) for name in PEERS]
            try:
                for agent in self._agents:
                    agent.start()
                yield self
            finally:
                for agent in self._agents:
                    agent.stop()

    def repaired(self, damaged_count: int, rounds: int) -> Rounds:
        """Damage and repair chunks in several rounds; return the costs."""
        taken = Rounds(damaged_count * self._shape.chunk_bytes)
        for settings, spent, is_paired in (
            ("", taken.ours, True),
            (READ_WHOLE, taken.whole, False),
        ):
            agent = self._agent("mine", self._scm.address, settings)
            agent.start()
            try:
                for number in range(rounds if is_paired else 1):
                    self._damage(damaged_count, number)
                    self._scan(agent)
                    self._drop()
                    if is_paired and number % 2:
                        taken.rsync.append(self._run_rsync())
                    spent.append(self._reconcile(agent))
                    if is_paired and not number % 2:
                        taken.rsync.append(self._run_rsync())
            finally:
                agent.stop()
        return taken

    def _agent(self, name: str, scm: str, settings: str = "") -> Process:
        config = self._folder / f"{name}.toml"
        config.write_text(
            f'[node]\nlisten = "127.0.0.1:0"\nscm = "{scm}"\n'
            f'[storage]\nvolumes = ["{self._folder / name}"]\nreserve_bytes = 0\n'
            f'[scan]\nenabled = false\nwatch = false\n[observe]\nlisten = ""\n{settings}'
        )
        arguments = ["agent.main", "--log-level", "warning", "--config", str(config)]
        return Process(name, arguments, self._folder / f"{name}.log")

    def _damage(self, count: int, seed: int) -> None:
        """Overwrite some bytes of `count` chunks, equally in the agent's volume and in rsync's
        target."""
        generator = random.Random(seed)  # noqa: S311 - the same places for both
        chunks = self._shape.block_count * self._shape.chunk_count
        for number in generator.sample(range(chunks), count):
            block, chunk = divmod(number, self._shape.chunk_count)
            offset = chunk * self._shape.chunk_bytes + generator.randrange(SMALL_BYTES - 64)
            for folder in (self._mine, self._target):
                with (folder / f"{block + 1}.block").open("r+b") as file:
                    file.seek(offset)
                    file.write(generator.randbytes(64))

    def _scan(self, agent: Process) -> None:
        """Run a scan on the agent, which finds the damage."""
        with Peer(agent.address) as peer:
            for _ in peer.scan(CONTAINER, full_speed=True):
                pass

    def _drop(self) -> None:
        """Drop all files from the page cache."""
        sync_all(self._folder)
        for folder in (self._mine, *self._served, self._target):
            for path in folder.iterdir():
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)

    def _run_rsync(self) -> Spent:
        fetched = self._rsync.fetch(self._target)
        return Spent(fetched.seconds, fetched.processor_s, fetched.wire_bytes)

    def _reconcile(self, agent: Process) -> Spent:
        """Order a reconcile from the agent, and wait for its end; return the cost."""
        self._commands += 1
        pids = [one.popen.pid for one in (agent, *self._agents) if one.popen is not None]
        before_s, before_bytes = sum(map(processor_s, pids)), self._wire_bytes()
        ends = zip(PEERS, self._agents, strict=True)
        peers = [
            container_pb2.DatanodeEndpoint(datanode_id=name, address=one.address)
            for name, one in ends
        ]
        reconcile = scm_pb2.ReconcileCommand(container_id=CONTAINER, peers=peers)
        self._scm.order(
            scm_pb2.Command(
                command_id=self._commands, term=1, lifetime_ms=600_000, reconcile=reconcile
            )
        )
        status = self._scm.wait_for(self._commands, WAIT_S)
        if status is None or status.reconcile.result != "converged":
            raise subprocess.SubprocessError(f"the reconcile did not converge: {status}")
        return Spent(
            status.reconcile.duration_ms / 1000,
            sum(map(processor_s, pids)) - before_s,
            self._wire_bytes() - before_bytes,
            status.reconcile.tree_bytes_fetched,
        )

    def _wire_bytes(self) -> int:
        """Return the bytes sent and received on all connections to the peers."""
        ports = [f"dport = :{one.address.rpartition(':')[2]}" for one in self._agents]
        words = [SS, "-tinH", "state", "established", f"( {' or '.join(ports)} )"]
        told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return sum(map(int, re.findall(r"bytes_(?:sent|received):(\d+)", told)))
