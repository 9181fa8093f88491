"""Coordinators, targets and sources killed with SIGKILL at points of a reconstruction.

Whatever is left behind, nothing good is gone, and the next command of the control plane makes the
shard whole.
"""

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.reconstruct.coordinator import ReconstructionCoordinator
from agent.store.options import StoreOptions
from agent.store.recovery.fsck import fsck
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.identity import remembered
from merkle.replica import BlockId, ReplicaState
from suture.ec.rebuild_task import RebuildTask, ShardLocation
from suture.ec.scheme import CodecName, Scheme
from suture.errors import Code, RefusedError, SutureError
from suture.runtime.clock import SystemClock
from suture.wire.clients import message_groups
from suture.wire.clients.peer import Peer
from suture.wire.mapping import codec
from suture.wire.mapping.erasure_codec import SCHEME as SCHEME_MAP
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.control.scripted_scm import CLUSTER_ID, ScriptedScm
from tests.support.faults.victim import Victim, steps_between, write_config
from tests.support.sizes import size
from tests.support.storage.ec_cluster import (
    CONTAINER,
    EcCluster,
    ec_cluster,
    shard_block,
    write_shard,
)

pytestmark = [pytest.mark.fault, pytest.mark.slow]

COORDINATOR_POINTS, TARGET_POINTS = size(16, nightly=50), size(12, nightly=30)
SOURCE_READS = 4  # of a whole run
SCHEME = Scheme(CodecName.RS, 2, 1, 4096)
LENGTHS = (1, 15 * 8192 + 100, 8192)  # more stripes than are asked for before their turn
LOST = 3
ABSENT = ReplicaState.DELETED  # how a replica that is not there is called here


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EcCluster]:
    """Three datanodes with a shard each; the third is taken for lost."""
    with ec_cluster(tmp_path / "cluster", SCHEME, LENGTHS, spare=0) as made:
        made.serve()
        yield made


class Stage:
    """The victim: one agent, which is started again on what is left."""

    def __init__(self, path: Path, scm: ScriptedScm, victim: Victim, cluster: EcCluster) -> None:
        self.path = path
        self.scm = scm
        self.victim = victim
        self.cluster = cluster
        self.command_id = 0

    def fresh(self, number: int) -> Path:
        """Return the config of an agent with an empty volume."""
        self.volume = self.path / f"run{number}"
        self.config = write_config(self.path / "run.toml", self.volume, self.scm.address)
        return self.config

    def order(self, address: str) -> RebuildTask:
        """Return the order to rebuild the lost shard at an address."""
        sources = tuple(self.cluster.shard(index, index) for index in (1, 2))
        victim = remembered([self.volume])
        assert victim is not None, "an agent that listens has formatted its volume"
        target = ShardLocation(victim.datanode_id, address, LOST)
        return RebuildTask(CONTAINER, SCHEME, sources, (target,))

    def command(self, address: str) -> scm_pb2.Command:
        """Return the same as the control plane sends it."""
        order = self.order(address)
        self.command_id += 1
        return scm_pb2.Command(
            command_id=self.command_id,
            term=1,
            reconstruct=scm_pb2.ReconstructCommand(
                container_id=CONTAINER,
                scheme=SCHEME_MAP.message(SCHEME),
                sources=[shard_message(shard) for shard in order.sources],
                targets=[shard_message(shard) for shard in order.targets],
            ),
        )

    def reconstruct_here(self, address: str) -> None:
        """Coordinate from this process."""
        with Peer(address) as target:

            def dial(shard: ShardLocation) -> Peer:
                return target if shard.address == address else self.cluster.peer(shard)

            ReconstructionCoordinator(
                self.cluster.executor, dial, now_ms=SystemClock().now_ms
            ).reconstruct(self.order(address))

    def assert_resolved(self) -> None:
        """Start the agent on what is left; the next commands make the shard whole."""
        address = self.victim.start(self.config)
        with Peer(address) as peer:
            state = state_at(peer)
            assert state in {
                ABSENT,
                ReplicaState.UNHEALTHY,
                ReplicaState.CLOSING,
                ReplicaState.CLOSED,
            }, state
            if state is ReplicaState.CLOSING:  # all was written: its close goes on
                self.carry_out(close_command())
            elif state is not ReplicaState.CLOSED:
                self.carry_out(self.command(address))
            assert_shard(peer, self.cluster)
        assert 0 == self.victim.stop()["signal"]
        assert () == fsck(self.volume, read_data=True).problems
        for index in (1, 2, 3):
            self.cluster.assert_shard(index, index)
        shutil.rmtree(self.volume)

    def carry_out(self, command: scm_pb2.Command) -> None:
        """Order it, and wait until it is done."""
        self.command_id += 1
        command.command_id = self.command_id
        self.scm.order(command)
        status = self.scm.wait_for(self.command_id)
        assert status is not None, "the command was not answered"
        assert scm_pb2.CommandStatus.EXECUTED == status.state, status


@pytest.fixture
def stage(tmp_path: Path, cluster: EcCluster) -> Iterator[Stage]:
    """Return an agent that may be killed."""
    with ScriptedScm() as scm, Victim(tmp_path / "agent.log") as victim:
        yield Stage(tmp_path, scm, victim, cluster)


def test_killed_coordinators(stage: Stage) -> None:
    """
    The agent that coordinates, and is the target, dies at any step that changes its disk.
    """
    address = stage.victim.start_counted(stage.fresh(0))
    first = stage.victim.stop()["steps"]  # of a start and a stop without any work
    stage.victim.start(stage.config)
    stage.victim.stop()
    address = stage.victim.start_counted(stage.config)
    stage.carry_out(stage.command(address))
    steps = steps_between(first // 2, stage.victim.stop()["steps"], COORDINATOR_POINTS)
    killed = 0

    for number, step in enumerate(steps, start=1):
        stage.fresh(number)
        doomed = stage.victim.start_doomed(stage.config, kill_at=step)
        if doomed is not None:
            killed += order_until_killed(stage, doomed)
        else:
            killed += 1
        stage.assert_resolved()

    assert killed >= len(steps) * 0.8, "the faults were not injected"


def test_killed_targets(stage: Stage) -> None:
    """The target agent dies. The coordinator gets an error, and the sources stay as they are."""
    address = stage.victim.start_counted(stage.fresh(0))
    stage.reconstruct_here(address)
    steps = steps_between(1, stage.victim.stop()["steps"], TARGET_POINTS)
    killed = 0

    for number, step in enumerate(steps, start=1):
        doomed = stage.victim.start_doomed(stage.fresh(number), kill_at=step)
        if doomed is not None:
            with contextlib.suppress(SutureError):
                stage.reconstruct_here(doomed)
            ended = stage.victim.stop()
            killed += ended["signal"] == signal.SIGKILL
        else:
            killed += 1
        stage.assert_resolved()

    assert killed >= len(steps) * 0.8, "the faults were not injected"


def test_killed_sources(stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A source dies between two reads: the run ends, its target is removed, and what the source has
    is there when it comes back.
    """
    monkeypatch.setattr(message_groups, "GROUP_COUNT_MAX", 1)  # else one call gets all cells
    volume = tmp_path / "source"
    volume.mkdir()
    store = ReplicaStore.open(
        [volume],
        cluster_id=CLUSTER_ID,
        datanode_id="source",
        options=StoreOptions(reserve_bytes=0),
    )
    write_shard(store, 1, stage.cluster.groups)
    store.close()
    config = write_config(tmp_path / "source.toml", volume, stage.scm.address)
    target = stage.cluster.nodes[LOST]
    target.store.delete_container(CONTAINER, force=True)

    for reads in range(1, SOURCE_READS + 1):
        address = stage.victim.start(config)
        kill_source_after(stage, address, reads)
        assert [] == target.store.replica_ids()
        address = stage.victim.start(config)
        run_with_source(stage, address)
        assert_shard(stage.cluster.peer(target), stage.cluster)
        target.store.delete_container(CONTAINER, force=True)
        assert 0 == stage.victim.stop()["signal"]

    assert () == fsck(volume, read_data=True).problems


def kill_source_after(stage: Stage, address: str, reads: int) -> None:
    """Coordinate from here; kill the source when so many reads are done."""
    done = []

    def pace(_length_bytes: int) -> None:
        done.append(1)
        if len(done) == reads:
            os.kill(stage.victim.pid, signal.SIGKILL)
            stage.victim.wait()

    with pytest.raises(SutureError):
        run_with_source(stage, address, pace)


def run_with_source(
    stage: Stage, address: str, pace: Callable[[int], None] = lambda _: None
) -> None:
    """Rebuild shard 3 from the agent at `address` and datanode 2."""
    cluster = stage.cluster
    order = RebuildTask(
        CONTAINER,
        SCHEME,
        (ShardLocation("source", address, 1), cluster.shard(2, 2)),
        (cluster.shard(LOST, LOST),),
    )
    with Peer(address) as source:

        def dial(shard: ShardLocation) -> Peer:
            return source if shard.address == address else cluster.peer(shard)

        ReconstructionCoordinator(
            cluster.executor, dial, now_ms=SystemClock().now_ms, pace=pace
        ).reconstruct(order)


def order_until_killed(stage: Stage, address: str) -> bool:
    """Order the reconstruction; return whether the agent died of it."""
    command = stage.command(address)
    stage.scm.order(command)
    while not stage.victim.is_over(0.05):
        if command.command_id in stage.scm.statuses:
            return bool(stage.victim.stop()["signal"] == signal.SIGKILL)
    stage.scm.withdraw()
    return bool(stage.victim.wait()["signal"] == signal.SIGKILL)


def close_command() -> scm_pb2.Command:
    """Return the order to close whatever was written."""
    close = scm_pb2.CloseCommand(container_id=CONTAINER, force=True)
    return scm_pb2.Command(term=1, close=close)


def shard_message(shard: ShardLocation) -> scm_pb2.EcShard:
    """Return a shard as a command names it."""
    datanode = container_pb2.DatanodeEndpoint(datanode_id=shard.datanode_id, address=shard.address)
    return scm_pb2.EcShard(datanode=datanode, replica_index=shard.index)


def state_at(peer: Peer) -> ReplicaState:
    """Return the state of the agent's replica."""
    try:
        report = peer.replica(CONTAINER)
    except RefusedError as error:
        if error.code is not Code.CONTAINER_NOT_FOUND:
            raise
        return ABSENT
    assert LOST == report.replica_index
    return codec.parse_state(report.state, "state")


def assert_shard(peer: Peer, cluster: EcCluster) -> None:
    """Assert that the agent has the lost shard, closed and byte for byte."""
    assert ReplicaState.CLOSED is state_at(peer)
    for block_id, made in cluster.groups.items():
        expected = shard_block(made, block_id, LOST, recorded=True)
        assert expected.chunks == peer.block(CONTAINER, BlockId(block_id)).chunks
        for chunk in expected.chunks:
            _, data = peer.read_chunk(CONTAINER, BlockId(block_id), chunk.offset)
            assert made.stripes[chunk.offset // SCHEME.cell_bytes][LOST] == data
