"""Agents killed with SIGKILL while a replica goes from one to the other: nothing half is left.

The target dies at steps of its import; the source dies after each message. Whoever died is started
again, the volume must pass fsck, and the same copy must then succeed.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.leases import ContainerLeases
from agent.services.import_handlers import ImportHandlers
from agent.services.limits import DatanodeServerLimits
from agent.services.read_handlers import ReadHandlers
from agent.services.server import build_server
from agent.store.options import StoreOptions
from agent.store.recovery.fsck import fsck
from agent.store.replica_store import ReplicaStore
from agent.transfer.incoming import ImportResult, ReplicaImporter
from agent.transfer.parts import ImportMessage
from agent.transfer.replicate import Replicator
from merkle.replica import ContainerId
from suture.errors import RefusedError, SutureError
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.control.scripted_scm import CLUSTER_ID, ScriptedScm
from tests.support.faults.victim import Victim, steps_between, write_config
from tests.support.sizes import size
from tests.support.storage.three_replicas import ThreeReplicas

pytestmark = [pytest.mark.fault, pytest.mark.slow]

CONTAINER = ContainerId(7)
POINTS = size(12, nightly=20)


def open_store(path: Path, datanode_id: str) -> ReplicaStore:
    """Open a datanode's store in this process."""
    path.mkdir(parents=True, exist_ok=True)
    options = StoreOptions(reserve_bytes=0)
    return ReplicaStore.open(
        [path], cluster_id=CLUSTER_ID, datanode_id=datanode_id, options=options
    )


def assert_clean(volume: Path) -> None:
    """Assert that the offline check, reading all data, finds nothing."""
    assert () == fsck(volume, read_data=True).problems


def push(store: ReplicaStore, address: str) -> bool:
    """Push the replica; return whether the target has it now, as it says itself."""
    with ThreadPoolExecutor(2) as readers, Peer(address) as peer:
        replicator = Replicator(
            store=store,
            leases=ContainerLeases(),
            executor=readers,
            monotonic_s=lambda: 0.0,
            scan=lambda _: False,
            on_damage=lambda *_: None,
        )
        try:
            outcome = replicator.replicate(CONTAINER, peer, stop=lambda: False)
        except SutureError:
            return False
    return outcome.result in {"imported", "already_there"}


def test_the_target_dies(tmp_path: Path) -> None:
    """A target killed at any step of an import has the whole replica afterwards or nothing."""
    replicas = ThreeReplicas(tmp_path / "cluster", CONTAINER)
    store = open_store(replicas.whole_volume(), "whole")
    root = store.view(CONTAINER).tree().root
    with ScriptedScm() as scm, Victim(tmp_path / "agent.log") as victim:
        config = write_config(tmp_path / "whole.toml", tmp_path / "target", scm.address)
        victim.start_counted(config)
        idle_steps = victim.stop()["steps"]
        shutil.rmtree(tmp_path / "target")
        config = write_config(tmp_path / "whole.toml", tmp_path / "target", scm.address)
        assert push(store, victim.start_counted(config))
        steps = steps_between(idle_steps // 2, victim.stop()["steps"], POINTS)
        killed = 0

        for number, step in enumerate(steps):
            volume = tmp_path / f"run{number}"
            config = write_config(tmp_path / "run.toml", volume, scm.address)
            address = victim.start_doomed(config, kill_at=step)
            acknowledged = address is not None and push(store, address)
            if address is not None:
                died = (victim.stop() if acknowledged else victim.wait())["signal"]
                killed += died == signal.SIGKILL
            else:
                killed += 1
            address = victim.start(config)
            with Peer(address) as peer:
                assert acknowledged <= (root_at(peer) == root)
                assert root_at(peer) in {None, root}
            assert push(store, address)
            assert 0 == victim.stop()["signal"]
            assert_clean(volume)
            shutil.rmtree(volume)
    store.close()

    assert killed >= len(steps) * 0.7, "the faults were not injected"


def root_at(peer: Peer) -> int | None:
    """Return the root of the replica that a datanode serves, None when it has none."""
    try:
        return peer.summary(CONTAINER).root
    except RefusedError:
        return None


class Assassin(ReplicaImporter):
    """A target that kills its source after so many messages."""

    def receive(self, parts: Iterator[ImportMessage]) -> ImportResult:
        """Receive, until the source dies."""
        return super().receive(self._until(parts))

    def _until(self, parts: Iterator[ImportMessage]) -> Iterator[ImportMessage]:
        for number, part in enumerate(parts):
            if number == Plot.kill_after:
                os.kill(Plot.source_pid, signal.SIGKILL)
            yield part


class Plot:
    """Whom to kill, and when."""

    source_pid = 0
    kill_after = 0


@contextmanager
def assassin(path: Path) -> Iterator[tuple[ReplicaStore, str]]:
    """Serve a target that kills its source."""
    store = open_store(path, "target")
    with ThreadPoolExecutor(4) as writers:
        leases = ContainerLeases()
        importer = Assassin(store=store, leases=leases, executor=writers, now_ms=lambda: 1)
        limits = DatanodeServerLimits()
        groups = [ReadHandlers(store, limits=limits), ImportHandlers(importer)]
        with ThreadPoolExecutor(4) as threads:
            built = build_server(
                groups, "127.0.0.1:0", threads, datanode_id="target", limits=limits
            )
            built.server.start()
            yield store, f"127.0.0.1:{built.port}"
            built.server.stop(None).wait()
    store.close()


def test_the_source_dies(tmp_path: Path) -> None:
    """
    After whatever message the source dies, the target has nothing of it, and takes it whole later.
    """
    replicas = ThreeReplicas(tmp_path / "cluster", CONTAINER)
    volume = replicas.whole_volume()
    died = 0
    with ScriptedScm() as scm, Victim(tmp_path / "agent.log") as victim:
        for kill_after in range(4):
            with assassin(tmp_path / f"target{kill_after}") as (target, address):
                shutil.rmtree(tmp_path / "source", ignore_errors=True)
                replicas.copy(volume, tmp_path / "source")
                config = write_config(tmp_path / "source.toml", tmp_path / "source", scm.address)
                victim.start(config)
                Plot.source_pid, Plot.kill_after = victim.pid, kill_after
                endpoint = container_pb2.DatanodeEndpoint(datanode_id="target", address=address)
                order = scm_pb2.ReplicateCommand(container_id=CONTAINER, target=endpoint)

                scm.order(scm_pb2.Command(command_id=kill_after + 1, term=1, replicate=order))

                died += victim.wait()["signal"] == signal.SIGKILL
                assert target.replica_ids() in ([], [CONTAINER])
                Plot.kill_after = -1
                victim.start(config)
                again = 100 + kill_after
                scm.order(scm_pb2.Command(command_id=again, term=1, replicate=order))
                status = scm.wait_for(again)
                assert status is not None
                assert status.replicate.result in {"imported", "already_there"}, status
                assert [CONTAINER] == target.replica_ids()
                assert [] == list(target.volume_set.working[0].layout.importing.iterdir())
                assert 0 == victim.stop()["signal"]
            assert_clean(tmp_path / "source")
            assert_clean(tmp_path / f"target{kill_after}")

    assert 4 == died
