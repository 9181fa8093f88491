"""A storm of commands at one agent: 10,000 in one heartbeat answer, while a client reads.

The agent is a process of its own with its own config; the control plane is scripted. Compared with
the same reads before the storm, in the same run. BENCH_COMMANDS says how many (10,000).
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agent.rpc.peer import Peer
from agent.rpc.v1 import container_pb2, scm_pb2
from bench.measure import Measure, at_most
from merkle.replica import BlockId, ContainerId
from tests.support.scripted_scm import ScriptedScm
from tests.support.three_replicas import CHUNK_BYTES, ThreeReplicas
from tests.support.victim import Zygote, write_config

CONTAINER: Final = ContainerId(7)
IDLE_READS: Final = 3_000
INTERVAL_MS: Final = 200
P99_RATIO_MAX: Final = 1.5
GROWTH_MIB_MAX: Final = 64
LATE_MAX: Final = 5.0
WAIT_S: Final = 120.0


def measures() -> list[Measure]:
    """Measure one storm."""
    count = int(os.environ.get("BENCH_COMMANDS", "10000"))
    with (
        tempfile.TemporaryDirectory(prefix="suture-bench-") as directory,
        ScriptedScm(heartbeat_interval_ms=INTERVAL_MS) as scm,
        Zygote(Path(directory) / "agent.log") as zygote,
    ):
        folder = Path(directory)
        replicas = ThreeReplicas(folder / "cluster", CONTAINER)
        replicas.copy(replicas.whole_volume(), folder / "volume")
        config = write_config(folder / "agent.toml", folder / "volume", scm.address)
        with Peer(zygote.start(config)) as peer:
            read_for(peer, lambda done: done >= IDLE_READS // 10)  # warm up
            idle_s = read_for(peer, lambda done: done >= IDLE_READS)
            before_mib = resident_mib(zygote.pid)
            beats_before = scm.heartbeats
            begun_s = time.perf_counter()
            scm.order_all([order(number) for number in range(1, count + 1)])
            busy_s = read_for(peer, lambda done: len(scm.statuses) >= count or late(begun_s, done))
            taken_s = time.perf_counter() - begun_s
            beats = scm.heartbeats - beats_before
            after_mib = resident_mib(zygote.pid)
        zygote.stop()
        answered = len(scm.statuses)
        expected_beats = taken_s / (INTERVAL_MS / 1000)
        ran = sum(item.state != scm_pb2.CommandStatus.SKIPPED for item in scm.statuses.values())
        return [
            at_most("storm: commands without an answer", count - answered, "", 0),
            Measure("storm: commands that ran", ran, "", f"of {count}; the others were refused"),
            Measure("storm: until all were answered", taken_s, "s"),
            at_most("storm: growth of memory", after_mib - before_mib, "MiB", GROWTH_MIB_MAX),
            at_most("storm: heartbeats late", expected_beats / max(1, beats), "x", LATE_MAX),
            at_most(
                "storm: readChunk p99", p99(busy_s) / p99(idle_s), "x", P99_RATIO_MAX,
                compared_with=f"idle {p99(idle_s) * 1000:.2f} ms",
            ),
        ]  # fmt: skip


def order(number: int) -> scm_pb2.Command:
    """Return one of the storm's commands: of all kinds, about containers that mostly are not."""
    container_id = 1_000 + number
    fields: dict[str, object] = {}
    nobody = container_pb2.DatanodeEndpoint(datanode_id="nobody", address="127.0.0.1:1")
    match number % 4:
        case 0:
            fields["close"] = scm_pb2.CloseCommand(container_id=container_id)
        case 1:
            fields["delete"] = scm_pb2.DeleteCommand(container_id=container_id)
        case 2:
            fields["replicate"] = scm_pb2.ReplicateCommand(container_id=container_id, target=nobody)
        case _:
            fields["reconcile"] = scm_pb2.ReconcileCommand(
                container_id=container_id, peers=[nobody]
            )
    return scm_pb2.Command(command_id=number, term=1, lifetime_ms=60_000, **fields)  # type: ignore[arg-type]


def read_for(peer: Peer, is_over: Callable[[int], bool]) -> list[float]:
    """Read chunks one after the other; return the seconds of each."""
    taken_s: list[float] = []
    while not is_over(len(taken_s)):
        begun_s = time.perf_counter()
        peer.read_chunk(CONTAINER, BlockId(len(taken_s) % 12 + 1), CHUNK_BYTES)
        taken_s.append(time.perf_counter() - begun_s)
    return taken_s


def late(begun_s: float, _done: int) -> bool:
    """Whether nobody should wait any longer."""
    return time.perf_counter() - begun_s > WAIT_S


def p99(values_s: list[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(values_s, n=100)[98]


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024**2
