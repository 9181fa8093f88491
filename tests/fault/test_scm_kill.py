"""kill -9 of the real `suture-scm` process: whatever it acknowledged is there when it is back."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.control.fake_datanode import FakeDatanode, report
from tests.support.control.scm_process import ScmProcess, spawn

pytestmark = [pytest.mark.fault, pytest.mark.slow]

NODES = ("dn1", "dn2", "dn3")
ROUNDS = 8
ROUNDS_MAX = 10 * ROUNDS
STEPS_MAX = 400
CONTAINER_BYTES = 64 * 1024


@dataclass
class Acknowledged:
    """What the control plane has said yes to, and must never forget."""

    keys: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    local_ids: set[int] = field(default_factory=set)
    container_ids: set[int] = field(default_factory=set)
    command_ids: set[int] = field(default_factory=set)
    answered: set[int] = field(default_factory=set)
    # Roots by datanode and container: the acknowledged one, then those sent since without an
    # answer, of which the last that arrived before a kill is there.
    replicas: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    term: int = 0
    cluster_id: str = ""


class Driver:
    """Does one random thing after the other, and writes down what was acknowledged."""

    def __init__(self, address: str, known: Acknowledged, seed: int) -> None:
        self.known = known
        self.random = random.Random(seed)  # a seeded script, not a secret
        self.seed = seed
        self.nodes = [FakeDatanode.dial(address, name, boot_id=seed + 1) for name in NODES]
        self.scm = self.nodes[0].stub
        self.steps = 0
        for node in self.nodes:
            node.register(cluster_id=known.cluster_id)
        self.scm.SafeMode(scm_pb2.SafeModeRequest(leave=True))  # else no key is written

    def run(self, stop_after: int) -> None:
        """Do this many things, or as many as the process lives for."""
        actions: list[Callable[[], None]] = [self.write, self.report, self.close, self.obey]
        for _ in range(stop_after):
            try:
                self.random.choice(actions)()
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                return  # killed
            self.steps += 1

    def write(self) -> None:
        """Allocate a block and commit it as a key."""
        name = f"key-{self.seed}-{self.steps}"
        (block,) = self.scm.AllocateBlocks(
            scm_pb2.AllocateBlocksRequest(client_id=f"client-{self.seed}", sizes=[9_000])
        ).blocks
        container_id, local_id = block.block_id.container_id, block.block_id.local_id
        assert local_id not in self.known.local_ids, "an id was given twice"
        self.known.local_ids.add(local_id)
        self.known.container_ids.add(container_id)
        location = scm_pb2.BlockLocation(block_id=block.block_id, length=9_000)
        self.scm.CommitKey(
            scm_pb2.CommitKeyRequest(
                client_id=f"client-{self.seed}",
                keys=[scm_pb2.KeyInfo(key=name, size=9_000, blocks=[location])],
            )
        )
        self.known.keys[name] = [(container_id, local_id)]

    def report(self) -> None:
        """Report a replica with a root nobody else has."""
        node = self.random.choice(self.nodes)
        container_id = self.random.randint(1, 50)
        root = self.random.randint(1, 2**64 - 1)
        state = container_pb2.OPEN if self.steps % 2 else container_pb2.CLOSED
        place = (node.datanode_id, container_id)
        self.known.replicas[place] = (*self.known.replicas.get(place, (0,)), root)
        # Commits in containers that this state did not make would prove a later state.
        node.report_some(report(container_id, state, bcsid=0, root=root))
        self.known.replicas[place] = (root,)

    def close(self) -> None:
        """Order a container closed; its commands are now known."""
        if not self.known.container_ids:
            return
        container_id = self.random.choice(sorted(self.known.container_ids))
        (decision,) = self.scm.CloseContainers(
            scm_pb2.CloseContainersRequest(container_ids=[container_id])
        ).decisions
        assert decision.code in {"OK", "QUASI_CLOSED_STUCK", "NO_REPLICAS_FOUND"}
        self.known.command_ids.update(decision.command_ids)

    def obey(self) -> None:
        """Fetch commands and answer them as failed: reports would change what is known."""
        node = self.random.choice(self.nodes)
        node.heartbeat()
        statuses = tuple(
            scm_pb2.CommandStatus(
                command_id=command.command_id,
                state=scm_pb2.CommandStatus.FAILED,
                type="close",
                container_id=command.close.container_id,
                code="BUSY",
            )
            for command in node.commands
        )
        node.commands.clear()
        node.heartbeat(statuses=statuses)
        self.known.answered.update(status.command_id for status in statuses)


def check(scm: ScmProcess, known: Acknowledged) -> None:
    """Assert that everything acknowledged is there."""
    stub = FakeDatanode.dial(scm.address, "reader").stub
    for name, blocks in known.keys.items():
        key = stub.LookupKey(scm_pb2.LookupKeyRequest(key=name)).key
        assert blocks == [(b.block_id.container_id, b.block_id.local_id) for b in key.blocks]
    shown = stub.ListContainerInfos(scm_pb2.ListContainerInfosRequest()).containers
    roots = {
        (r.datanode.datanode_id, c.container_id): r.replica.tree.root
        for c in shown
        for r in c.replicas
    }
    assert known.container_ids <= {c.container_id for c in shown}
    for place, acceptable in known.replicas.items():
        assert roots.get(place, 0) in acceptable
    asked = sorted(known.command_ids)
    answer = stub.ListOutcomes(scm_pb2.ListOutcomesRequest(command_ids=asked, count=1_000))
    found = {outcome.status.command_id for outcome in answer.outcomes}
    assert known.command_ids == (found | set(answer.pending_command_ids)) & known.command_ids
    assert known.answered & known.command_ids <= found


class TestKill:
    @pytest.mark.parametrize("seed", [1, 2])
    def test_acknowledged_state_survives_kills_at_random_moments(
        self, tmp_path: Path, seed: int
    ) -> None:
        """The SCM is killed while it works, several times, on the same state. On a slow machine
        there are more rounds, because more kills come before a key is stored."""
        known = Acknowledged()
        delays = random.Random(seed)
        total_steps = 0

        for round_number in range(ROUNDS_MAX):
            if round_number >= ROUNDS and len(known.keys) > ROUNDS:
                break
            scm = ScmProcess.start(tmp_path, container_bytes_max=CONTAINER_BYTES)
            assert known.term + 1 == scm.listening["term"]
            assert known.cluster_id in {"", scm.listening["cluster_id"]}
            known.term, known.cluster_id = scm.listening["term"], scm.listening["cluster_id"]
            check(scm, known)
            driver = Driver(scm.address, known, seed * 1_000 + round_number)
            killer = threading.Timer(delays.uniform(0.02, 0.5), scm.process.kill)
            killer.start()
            driver.run(STEPS_MAX)
            killer.join()
            scm.kill()
            total_steps += driver.steps

        scm = ScmProcess.start(tmp_path)
        check(scm, known)
        assert 0 == scm.terminate()
        assert total_steps > ROUNDS, "the kills came before anything happened"
        assert len(known.keys) > ROUNDS
        assert known.answered

    def test_a_kill_between_two_acknowledged_steps_loses_nothing(self, tmp_path: Path) -> None:
        """After every single kind of step."""
        known = Acknowledged()
        for step in ("write", "report", "write", "close", "obey"):
            scm = ScmProcess.start(tmp_path, container_bytes_max=CONTAINER_BYTES)
            known.term, known.cluster_id = scm.listening["term"], scm.listening["cluster_id"]
            driver = Driver(scm.address, known, known.term)
            getattr(driver, step)()
            scm.kill()

        scm = ScmProcess.start(tmp_path)
        check(scm, known)

        assert 6 == scm.listening["term"]
        assert 2 == len(known.keys)
        assert 0 == scm.terminate()


class TestProcess:
    def test_a_second_one_on_the_same_state_is_refused_and_told_who_has_it(
        self, tmp_path: Path
    ) -> None:
        """The second process exits with 1 before it listens, and the first continues."""
        first = ScmProcess.start(tmp_path)

        second = spawn(tmp_path)
        out, err = second.communicate(30)

        assert (1, "") == (second.returncode, out)
        assert f"pid {first.process.pid}" in err
        assert 0 == first.terminate()

    def test_scm_logs_one_json_line_when_ready_and_stops_on_sigterm(self, tmp_path: Path) -> None:
        """The line says that the SCM is not highly available. SIGTERM ends the process with exit
        code 0 while a client is connected.
        """
        scm = ScmProcess.start(tmp_path)
        FakeDatanode.dial(scm.address, "dn1").register()

        code = scm.terminate()

        assert 0 == code
        assert scm.listening["event"] == "listening"
        assert scm.listening["highly_available"] is False

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"sede": 1}, "sede: no such option"),
            ({"stale_after_ms": 99_000}, "must exceed stale_after_ms 99000"),
        ],
    )
    def test_a_wrong_option_is_named(
        self, tmp_path: Path, settings: dict[str, int], message: str
    ) -> None:
        """Before anything is created."""
        process = spawn(tmp_path / "new", **settings)
        _out, err = process.communicate(30)

        assert 1 == process.returncode
        assert message in err
        assert not (tmp_path / "new").exists()

    def test_an_unbindable_address_is_named(self, tmp_path: Path) -> None:
        """The error names the address, and the lock on the state is released."""
        process = spawn(tmp_path, listen="256.0.0.1:1", allow_plaintext="true")
        _out, err = process.communicate(30)

        assert 1 == process.returncode
        assert "cannot listen on 256.0.0.1:1" in err
