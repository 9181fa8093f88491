"""Every program gives the same verdict of the same cluster: 1,000 seeded states at night."""

import random
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.cli.main import run
from health.cluster_verdict import DataVerdict
from merkle.replica import ReplicaState
from scm.administration.decommission import OpStateRequest
from scm.api.http_pages import HttpStatus
from scm.cluster.nodes import Registration
from scm.state.entities import OpState, Replica
from scm.state.options import ScmOptions
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.exit_codes import ExitCode
from suture.runtime.loop import WorkerLoops
from suture.wire.mapping.addressee import ADDRESSEE_HEADER
from suture.wire.mapping.rpc_services import DATANODE
from suture.wire.v1 import datanode_pb2
from tests.support.command_tree import command_of
from tests.support.control.scm_world import ScmWorld, container, pass_time, replica, volume
from tests.support.printed_json import document_in
from tests.support.sizes import size
from tests.support.wire.served import add_service

STATES = size(200, nightly=1_000)
PARTS = STATES // 50
UNREACHABLE_PORT = 1
PAGE_KINDS = {"answer": "WHOLE", "answer doubt": "UNKNOWN", "answer wrong": "DEGRADED"}
VERDICTS = {
    ExitCode.OK: "WHOLE",
    ExitCode.TO_DO: "DEGRADED",
    ExitCode.UNAVAILABLE: "UNKNOWN",
}
"""The verdict that each exit code stands for, as docs/operations/exit-codes.md says."""
ODD = ("missing", "unhealthy", "finding", "load error", "other root", "surplus")
EVENTS = ("stale", "dead", "leaving", "maintenance", "safe mode", "", "", "", "")
SILENT_S = {"stale": 16, "dead": 61}


class Datanodes:
    """Answers `suture status` for all datanodes of a cluster, on addresses of this host."""

    def __init__(self) -> None:
        self.finding_counts: Mapping[str, int] = {}

    def Status(self, _request: object, context: grpc.ServicerContext) -> Any:
        """Return the findings of the datanode that the caller asks."""
        asked = dict(context.invocation_metadata())[ADDRESSEE_HEADER]
        return datanode_pb2.StatusResponse(
            datanode_id=asked, finding_count=self.finding_counts[asked]
        )

    def ScrubStatus(self, _request: object, _context: grpc.ServicerContext) -> Any:
        """Return no scans."""
        return datanode_pb2.ScrubStatusResponse()


@pytest.fixture(scope="module")
def datanodes() -> Iterator[tuple[Datanodes, int]]:
    """Serve the datanodes of all clusters; yield them with their port."""
    answers = Datanodes()
    with ThreadPoolExecutor(8) as executor:
        server = grpc.server(executor)
        add_service(server, DATANODE, answers)
        port = server.add_insecure_port("0.0.0.0:0")
        server.start()
        yield answers, port
        server.stop(0).wait()


@dataclass
class SeededCluster:
    """A cluster with a random mix of faults, of which every one is drawn from the seed."""

    path: Path
    seed: int
    port: int

    def __post_init__(self) -> None:
        """Draw the faults: none in about one state of four."""
        draw = random.Random(self.seed)
        self.world = ScmWorld(self.path, ScmOptions())
        self.nodes = [f"dn{i}" for i in range(draw.choice((3, 4, 5)))]
        rack_count = draw.choice((1, 2))
        self.racks = {node: f"/r{i % rack_count}" for i, node in enumerate(self.nodes)}
        is_faulty = draw.random() < 0.5
        self.faults: list[str] = []
        self.replicas: dict[str, list[Replica]] = {node: [] for node in self.nodes}
        for number in range(1, draw.choice((2, 3, 4))):
            self._add_container(draw, number, is_faulty=is_faulty)
        event = draw.choice(EVENTS)
        chosen = draw.choice(self.nodes)
        self._register(silent=chosen if event in SILENT_S else "")
        self.world.control.tick()
        self._happen(event, chosen)

    def _register(self, *, silent: str, unheard: str = "") -> None:
        for number, node in enumerate(self.nodes):
            if node == unheard:
                continue
            port = UNREACHABLE_PORT if node == silent else self.port
            address = f"127.0.0.{number + 1}:{port}"
            self.world.control.datanodes.register(
                Registration(node, address, self.racks[node], "0.1.0", "", 1, (volume(),))
            )
            self.world.beat(node, *self.replicas[node], full=True)

    def _happen(self, event: str, node: str) -> None:
        alive = [each for each in self.nodes if event not in SILENT_S or each != node]
        if event in {*SILENT_S, "safe mode"}:
            self.faults.append(event)
        match event:
            case "stale" | "dead":
                self.world.clock.advance_s(SILENT_S[event])
            case "leaving":
                self._request(node, OpState.DECOMMISSIONING)
                self.faults += ["leaving"] if self._is_needed(node) else []
            case "maintenance":
                self._request(node, OpState.ENTERING_MAINTENANCE)
            case "safe mode":
                self.world.restart()
                self._register(silent="", unheard=node)
                self.world.control.tick()
                alive = [each for each in self.nodes if each != node]
        pass_time(self.world, 2, *alive)

    def _is_needed(self, node: str) -> bool:
        """Return True if the other nodes hold fewer than three replicas of a container on `node`,
        or three on one rack of two."""
        needed = False
        for held in self.replicas[node]:
            others = [
                other
                for other in self.nodes
                if other != node
                and any(r.container_id == held.container_id for r in self.replicas[other])
            ]
            is_spread = len({self.racks[other] for other in others}) > 1
            needed |= len(others) < 3 or (len(set(self.racks.values())) > 1 and not is_spread)
        return needed

    def _request(self, node: str, op_state: OpState) -> None:
        wanted = OpStateRequest((node,), op_state, op_expiry_ms=0, is_forced=True, is_dry_run=False)
        [decision] = self.world.control.departure_requests.submit(wanted)
        assert decision.code == "OK", decision

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


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, Any]:
    """Run a command; return the verdict that its exit code stands for, and its document."""
    capsys.readouterr()
    code = run([*arguments, "--json"])
    named = " ".join(command_of(arguments))
    return VERDICTS[ExitCode(code)], document_in(capsys.readouterr().out, named)


def verdicts(world: ScmWorld, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the verdict that each program gives. `healthy` counts as WHOLE or not."""
    with world.served() as address, CallThreadPool(2, 4) as calls:
        watched = HttpStatus(world.control, calls, WorkerLoops(), lambda: True)
        status_code, status = answered(capsys, "status", "--scm", address)
        report_code, report = answered(capsys, "scm", "report", "--scm", address)
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
        "exit code of status": status_code,
        "exit code of report": report_code,
        "healthy of status": "WHOLE" if status["healthy"] else status["verdict"],
        "healthy of report": "WHOLE" if report["healthy"] else report["verdict"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_program_gives_the_same_verdict(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    datanodes: tuple[Datanodes, int],
    part: int,
) -> None:
    """The verdict is WHOLE if and only if the state has no fault but surplus replicas."""
    seen: set[str] = set()
    for seed in range(part, STATES, PARTS):
        cluster = SeededCluster(tmp_path / str(seed), seed, datanodes[1])
        datanodes[0].finding_counts = {
            node: sum(held.finding_count for held in replicas)
            for node, replicas in cluster.replicas.items()
        }
        with cluster.world.running():
            found = verdicts(cluster.world, capsys)

        assert 1 == len(set(found.values())), (seed, cluster.faults, found)
        is_whole = found["status"] == DataVerdict.WHOLE
        assert (not cluster.faults) is is_whole, (seed, cluster.faults, found)
        seen.add(found["status"])
    assert set(DataVerdict) == seen


def test_first_line_of_status_says_that_the_control_plane_is_unreachable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in (["status"], ["scm", "report"]):
        code = run([*command, "--scm", f"127.0.0.1:{UNREACHABLE_PORT}"])

        first = capsys.readouterr().err.splitlines()[0]
        assert ExitCode.UNAVAILABLE is ExitCode(code)
        assert "error: the SCM at 127.0.0.1:1 is unavailable: connection refused" in first
