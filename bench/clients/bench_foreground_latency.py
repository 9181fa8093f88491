"""Measures reads of chunks beside the agent's own work: a scan, a reconcile and a copy at once.

Agents are the programs that hosts run, each in its own process; only the control plane is scripted.
A client reads one agent's chunks from the page cache at random moments throughout. Each round has a
quiet turn and a busy one, in which three tasks repeat in parallel: a container is scanned; chunks
of another one are damaged, found by a scan and fetched from a peer; a third is copied to another
agent, and deleted there. The order alternates; each round's p99 of the busy turn is divided by that
of its quiet turn.

    BENCH_BESIDE_ROUNDS     rounds (10)
    BENCH_BESIDE_TURN_S     seconds of each turn (12)
"""

import os
import random
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from bench.clients.bench_commands import percentile, reading, within
from bench.measure import Measure, at_most
from bench.scans.scan_world import CLUSTER, Shape, copy_volume, fill, open_store
from merkle.replica import ContainerId
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, scm_pb2
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.control.scripted_scm import ScriptedScm
from tools.demo.cluster import Process

MIB: Final = 1024**2
READ, SCANNED, MENDED, COPIED = (ContainerId(number) for number in (7, 8, 9, 10))
READ_SHAPE: Final = Shape(block_count=12, chunk_count=4, chunk_bytes=64 * 1024)
SCANNED_SHAPE: Final = Shape(block_count=4, chunk_count=16, chunk_bytes=4 * MIB)
MENDED_SHAPE: Final = Shape(block_count=4, chunk_count=64, chunk_bytes=64 * 1024)
COPIED_SHAPE: Final = Shape(block_count=4, chunk_count=8, chunk_bytes=4 * MIB)
DAMAGED_COUNT: Final = 50
DAMAGE_BYTES: Final = 64
INTERVAL_MS: Final = 200
SETTLE_S: Final = 1.0
WAIT_S: Final = 120.0
P99_RATIO_MAX: Final = 1.3
NOBODY: Final = "127.0.0.1:9"  # the volume has cluster and datanode ids: no SCM is needed
Span = tuple[float, float]


def measures() -> list[Measure]:
    """Measure quiet and busy turns in alternation."""
    rounds = int(os.environ.get("BENCH_BESIDE_ROUNDS", "10"))
    turn_s = float(os.environ.get("BENCH_BESIDE_TURN_S", "12"))
    with tempfile.TemporaryDirectory(prefix="suture-bench-") as directory:
        folder = Path(directory)
        with World(folder).running() as world:
            path = folder / "reads"
            with reading(world.address, path, READ):
                turns = [taken(world, index, turn_s) for index in range(rounds)]
            lines = path.read_text().splitlines()[:-1]
        reads = [(float(at), float(took)) for at, took in map(str.split, lines)]
        return results(reads, turns, world)


def taken(world: "World", index: int, turn_s: float) -> tuple[Span, Span]:
    """Run one round; return the spans of its quiet and its busy turn."""
    if index % 2:
        busy = world.busy(turn_s)
        return quiet(turn_s), busy
    return quiet(turn_s), world.busy(turn_s)


def quiet(turn_s: float) -> Span:
    """Wait for a turn with reads only."""
    time.sleep(SETTLE_S)
    begun_s = time.monotonic()
    time.sleep(turn_s)
    return begun_s, time.monotonic()


def results(
    reads: list[tuple[float, float]], turns: list[tuple[Span, Span]], world: "World"
) -> list[Measure]:
    """Return the measures of the promise."""
    pairs = [tuple(within(reads, [span]) for span in turn) for turn in turns]
    medians = sorted(percentile(busy, 50) / percentile(idle, 50) for idle, busy in pairs)
    p99s = sorted(percentile(busy, 99) / percentile(idle, 99) for idle, busy in pairs)
    idle_ms = [percentile(idle, 99) * 1000 for idle, _ in pairs]
    told = f"quiet {statistics.median(idle_ms):.2f} ms ({min(idle_ms):.2f} to {max(idle_ms):.2f})"
    done = ", ".join(f"{number} {name}" for name, number in world.done.items())
    return [
        Measure("beside: reads", sum(len(busy) for _, busy in pairs), "", f"beside {done}"),
        Measure(
            f"beside: readChunk median ({medians[0]:.2f} to {medians[-1]:.2f})",
            statistics.median(medians),
            "x",
        ),
        at_most(
            f"beside: readChunk p99 ({p99s[0]:.2f} to {p99s[-1]:.2f})",
            statistics.median(p99s),
            "x",
            P99_RATIO_MAX,
            compared_with=told,
        ),
    ]


class World:
    """Three agents: one that is read and works, one it fetches from, one it copies to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)
        self._damage = random.Random(1)  # noqa: S311 - places, not secrets
        self.done = {"scans": 0, "reconciles": 0, "copies": 0}
        self._mended = fill(folder / "mine", MENDED, MENDED_SHAPE)
        copy_volume(folder / "mine", folder / "peer", "peer")
        open_store(folder / "target", "target").close()  # an empty volume
        fill(folder / "mine", READ, READ_SHAPE)
        fill(folder / "mine", SCANNED, SCANNED_SHAPE)
        fill(folder / "mine", COPIED, COPIED_SHAPE)

    @contextmanager
    def running(self) -> Iterator["World"]:
        """Run agents and control plane."""
        with ExitStack() as stack:
            self._scm = stack.enter_context(ScriptedScm(INTERVAL_MS, CLUSTER))
            addresses = {"mine": self._scm.address, "peer": NOBODY, "target": NOBODY}
            self._agents = {name: self._agent(name, scm) for name, scm in addresses.items()}
            for agent in self._agents.values():
                agent.start()
                stack.callback(agent.stop)
            self._own = stack.enter_context(Peer(self.address))
            self._target = stack.enter_context(Peer(self._agents["target"].address))
            yield self

    @property
    def address(self) -> str:
        """Address of the agent that is read."""
        return self._agents["mine"].address

    def busy(self, turn_s: float) -> Span:
        """Keep the agent busy with all three for a turn; nothing is running afterwards.

        Raise CalledProcessError if a task was not done at all, because then nothing was measured.
        """
        time.sleep(SETTLE_S)
        before = dict(self.done)
        is_over = threading.Event()
        work = {"scans": self._scan, "reconciles": self._reconcile, "copies": self._copy}
        begun_s = time.monotonic()
        with ThreadPoolExecutor(len(work)) as pool:
            jobs = [pool.submit(self._repeat, name, one, is_over) for name, one in work.items()]
            time.sleep(turn_s)
            span = begun_s, time.monotonic()
            is_over.set()
            for job in jobs:
                job.result()
        idle = [name for name in work if self.done[name] == before[name]]
        if idle:
            raise subprocess.SubprocessError(f"a busy turn without {', '.join(idle)}")
        return span

    def _repeat(self, name: str, work: Callable[[], None], is_over: threading.Event) -> None:
        while not is_over.is_set():
            work()
            self.done[name] += 1

    def _scan(self) -> None:
        for _ in self._own.scan(SCANNED):
            pass

    def _reconcile(self) -> None:
        chunks = MENDED_SHAPE.block_count * MENDED_SHAPE.chunk_count
        for number in self._damage.sample(range(chunks), DAMAGED_COUNT):
            block, chunk = divmod(number, MENDED_SHAPE.chunk_count)
            with (self._mended / f"{block + 1}.block").open("r+b") as file:
                file.seek(chunk * MENDED_SHAPE.chunk_bytes)
                file.write(self._damage.randbytes(DAMAGE_BYTES))
        for _ in self._own.scan(MENDED):
            pass
        peers = [self._endpoint("peer")]
        command = scm_pb2.ReconcileCommand(container_id=MENDED, peers=peers)
        status = self._ordered(reconcile=command)
        if status.reconcile.result != "converged":
            raise subprocess.SubprocessError(f"the reconcile did not converge: {status}")

    def _copy(self) -> None:
        command = scm_pb2.ReplicateCommand(container_id=COPIED, target=self._endpoint("target"))
        self._ordered(replicate=command)
        self._target.stub.DeleteContainer(
            pb.DeleteContainerRequest(container_id=COPIED, force=True), timeout=WAIT_S
        )

    def _ordered(self, **command: object) -> scm_pb2.CommandStatus:
        """Send a command; return its status, which must be successful."""
        number = next(self._numbers)
        self._scm.order(
            scm_pb2.Command(command_id=number, term=1, lifetime_ms=600_000, **command)  # type: ignore[arg-type]
        )
        status = self._scm.wait_for(number, WAIT_S)
        if status is None or status.state != scm_pb2.CommandStatus.EXECUTED:
            raise subprocess.SubprocessError(f"command {number} was not executed: {status}")
        return status

    def _endpoint(self, name: str) -> container_pb2.DatanodeEndpoint:
        return container_pb2.DatanodeEndpoint(datanode_id=name, address=self._agents[name].address)

    def _agent(self, name: str, scm: str) -> Process:
        config = self._folder / f"{name}.toml"
        config.write_text(
            f'[node]\nlisten = "127.0.0.1:0"\nscm = "{scm}"\n'
            f'[storage]\nvolumes = ["{self._folder / name}"]\nreserve_bytes = 0\n'
            '[scan]\nenabled = false\nwatch = false\n[observe]\nlisten = ""\n'
        )
        arguments = ["agent.main", "--log-level", "warning", "--config", str(config)]
        return Process(name, arguments, self._folder / f"{name}.log")
