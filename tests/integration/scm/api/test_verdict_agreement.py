"""Every program gives the same verdict of the same cluster: 200 seeded states."""

import random
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from health.cluster_verdict import DataVerdict
from merkle.replica import ReplicaState
from scm.api.http_pages import HttpStatus
from scm.cluster.nodes import Registration
from scm.state.entities import Replica
from scm.state.options import ScmOptions
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.exit_codes import ExitCode
from suture.runtime.loop import WorkerLoops
from tests.support.command_line import CommandLine
from tests.support.control.scm_world import ScmWorld, container, pass_time, replica, volume

STATES = 200
PARTS = 10
UNREACHABLE = "127.0.0.{}:1"
PAGE_KINDS = {"answer": "WHOLE", "answer doubt": "UNKNOWN", "answer wrong": "DEGRADED"}
ODD = ("missing", "unhealthy", "finding", "load error", "other root", "surplus")


@dataclass
class SeededCluster:
    """A cluster with a random mix of faults, of which every one is drawn from the seed."""

    path: Path
    seed: int

    def __post_init__(self) -> None:
        """Draw the faults: none in about one state of three."""
        draw = random.Random(self.seed)
        self.world = ScmWorld(self.path, ScmOptions())
        self.nodes = [f"dn{i}" for i in range(draw.choice((3, 4, 5)))]
        rack_count = draw.choice((1, 2))
        self.racks = {node: f"/r{i % rack_count}" for i, node in enumerate(self.nodes)}
        is_faulty = draw.random() < 0.7
        self.faults: list[str] = []
        self.replicas: dict[str, list[Replica]] = {node: [] for node in self.nodes}
        for number in range(1, draw.choice((2, 3, 4))):
            self._add_container(draw, number, is_faulty=is_faulty)
        silent_s = draw.choice((0, 0, 16, 61)) if is_faulty else 0
        silent = draw.choice(self.nodes) if silent_s else ""
        for number, node in enumerate(self.nodes):
            registration = Registration(
                node, UNREACHABLE.format(number), self.racks[node], "0.1.0", "", 1, (volume(),)
            )
            self.world.control.datanodes.register(registration)
            self.world.beat(node, *self.replicas[node], full=True)
        self.world.control.tick()
        self.faults += ["silent"] if silent else []
        self.world.clock.advance_s(silent_s)
        pass_time(self.world, 2, *(node for node in self.nodes if node != silent))

    def _add_container(self, draw: random.Random, number: int, *, is_faulty: bool) -> None:
        with self.world.state.change() as change:
            change.put(self.world.state.containers, container(container_id=number))
        holders = draw.sample(self.nodes, 3)
        is_spread = len({self.racks[node] for node in holders}) > 1
        if len(set(self.racks.values())) > 1 and not is_spread:
            self.faults.append("one rack")
        fault = draw.choice((*ODD, "", "")) if is_faulty else ""
        for place, node in enumerate(holders):
            odd = fault if not place else ""
            if odd == "missing":
                continue
            self.replicas[node].append(
                replica(
                    node,
                    ReplicaState.UNHEALTHY if odd == "unhealthy" else ReplicaState.CLOSED,
                    container_id=number,
                    root=8 if odd == "other root" else 7,
                    finding_count=int(odd == "finding"),
                    load_error="gone" if odd == "load error" else "",
                )
            )
        others = [node for node in self.nodes if node not in holders]
        if fault == "surplus":
            self.replicas.update(
                {n: [*self.replicas[n], replica(n, container_id=number)] for n in others[:1]}
            )
        elif fault:
            self.faults.append(fault)


def verdicts(cluster: SeededCluster, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the verdict that each program gives; an exit code counts as WHOLE or not."""
    world = cluster.world
    with world.served() as address, CallThreadPool(2, 4) as calls:
        suture = CommandLine(address, capsys)
        watched = HttpStatus(world.control, calls, WorkerLoops(), lambda: True)
        status = suture.json_any("status")
        report = suture.json_any("scm", "report")
        is_whole = report["verdict"] == DataVerdict.WHOLE
        text = suture("scm", "report", code=ExitCode.OK if is_whole else ExitCode.TO_DO)
        metrics = watched.metrics().body.decode()
        page = watched.page({}).body.decode()
    [scraped] = re.findall(r'suture_scm_verdict\{verdict="(\w+)"\} 1\.0', metrics)
    [kind] = re.findall(r'class="(answer(?: \w+)?)"', page)
    world.control.note_history()
    return {
        "status": status["verdict"],
        "report": report["verdict"],
        "metrics": scraped,
        "page": PAGE_KINDS[kind],
        "history": world.control.queries.survey().past.turns[-1].verdict,
        "text": "WHOLE" if text.startswith("every datanode is heard") else report["verdict"],
        "well": "WHOLE" if report["healthy"] else report["verdict"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_program_gives_the_same_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: int
) -> None:
    """The verdict is WHOLE if and only if the state has no fault but surplus replicas."""
    seen: set[str] = set()
    for seed in range(part, STATES, PARTS):
        cluster = SeededCluster(tmp_path / str(seed), seed)
        with cluster.world.running():
            found = verdicts(cluster, capsys)

        assert 1 == len(set(found.values())), (seed, cluster.faults, found)
        assert (not cluster.faults) is (found["status"] == "WHOLE"), (seed, cluster.faults, found)
        seen.add(found["status"])
    assert {"WHOLE", "DEGRADED"} <= seen
