"""Lines between an agent and its control plane that break or stall while orders are under way.

What was ordered is done once in the end, every order is answered, and the agent has as many threads
and descriptors as before, and no file more. SUTURE_PARTITION_REPEATS says how often (12).
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.store.recovery.fsck import fsck
from merkle.replica import ContainerId, ReplicaState
from suture.wire.v1 import scm_pb2
from tests.support.control.scripted_scm import ScriptedScm
from tests.support.faults.bad_line import BadLine
from tests.support.faults.victim import write_config
from tests.support.nursery import forked
from tests.support.storage.stored_replica import CLUSTER, StoredReplica
from tools.demo.cluster import Process

pytestmark = [pytest.mark.fault, pytest.mark.slow]

REPEATS = int(os.environ.get("SUTURE_PARTITION_REPEATS", "12"))
SEED = 20261121
BYTES_MAX = 4_000  # some heartbeats
CUT_S = 0.3
SLACK = 8  # pools fill up to their size, once


@dataclass
class Stage:
    """An agent, its control plane, and the line between them."""

    agent: Process
    scm: ScriptedScm
    line: BadLine

    def left_over(self) -> tuple[int, int]:
        """Return the threads and descriptors of the agent."""
        assert self.agent.popen is not None
        process = Path(f"/proc/{self.agent.popen.pid}")
        return len(list((process / "task").iterdir())), len(list((process / "fd").iterdir()))

    def carry_out(self, orders: list[scm_pb2.Command]) -> None:
        """Order again and again what is not answered, as a control plane does."""
        wanted = {order.command_id for order in orders}
        while not wanted <= self.scm.statuses.keys():
            self.scm.withdraw()
            self.scm.order_all([o for o in orders if o.command_id not in self.scm.statuses])
            self.scm.wait_until(lambda: wanted <= self.scm.statuses.keys(), timeout_s=5.0)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """An agent with three containers for each repeat: to close, to delete, to delete a block of."""
    replica = StoredReplica(tmp_path / "volume")
    for number in range(REPEATS):
        to_close, to_delete, to_shrink = containers(number)
        replica.store.create_container(to_close)
        replica.put(1, 100, container_id=to_close)
        replica.create(to_delete, blocks=1)
        replica.create(to_shrink, blocks=2)
    replica.close()
    with ScriptedScm(50, CLUSTER) as scm, BadLine(scm.address) as line:
        config = write_config(tmp_path / "agent.toml", tmp_path / "volume", line.address)
        words = ["agent.main", "--config", str(config)]
        agent = Process("agent", words, tmp_path / "agent.log", launch=forked)
        agent.start()
        try:
            yield Stage(agent, scm, line)
        finally:
            agent.stop()


def containers(number: int) -> tuple[ContainerId, ContainerId, ContainerId]:
    """Return the containers of one repeat."""
    return ContainerId(3 * number + 1), ContainerId(3 * number + 2), ContainerId(3 * number + 3)


def orders_of(number: int) -> list[scm_pb2.Command]:
    """Return the orders of one repeat."""
    to_close, to_delete, to_shrink = containers(number)
    block = scm_pb2.DeleteTransaction(
        transaction_id=number + 1, container_id=to_shrink, local_ids=[1]
    )
    first = 3 * number + 1
    return [
        scm_pb2.Command(
            command_id=first, term=1, close=scm_pb2.CloseCommand(container_id=to_close, force=True)
        ),
        scm_pb2.Command(
            command_id=first + 1,
            term=1,
            delete=scm_pb2.DeleteCommand(container_id=to_delete, force=True),
        ),
        scm_pb2.Command(
            command_id=first + 2,
            term=1,
            delete_blocks=scm_pb2.DeleteBlocksCommand(transactions=[block]),
        ),
    ]


def test_orders_over_a_bad_line(stage: Stage, tmp_path: Path) -> None:
    """Orders are executed and answered although the order or its answer is cut off at any point."""
    chosen = random.Random(SEED)
    assert stage.scm.wait_until(lambda: stage.scm.heartbeats > 2)
    answered_in_time = 0
    before = (0, 0)
    for number in range(REPEATS):
        orders = orders_of(number)
        wanted = {order.command_id for order in orders}
        stage.line.breaks_after(chosen.randrange(BYTES_MAX), stalls=number % 3 == 0)
        stage.line.cut()
        stage.scm.order_all(orders)
        answered_in_time += stage.scm.wait_until(
            lambda: wanted <= stage.scm.statuses.keys(),  # noqa: B023 - waited for here
            timeout_s=chosen.uniform(0, CUT_S),
        )
        stage.line.breaks_after(-1, stalls=False)
        stage.line.cut()
        stage.carry_out(orders)
        if number == REPEATS // 3:
            before = stage.left_over()

    after = stage.left_over()
    assert all(now <= then + SLACK for now, then in zip(after, before, strict=True)), (
        before,
        after,
    )
    assert answered_in_time < REPEATS, "no line was cut in time"
    assert 3 * REPEATS == len(stage.scm.statuses)
    assert 0 == stage.agent.stop()
    assert_done(tmp_path / "volume")


def assert_done(volume: Path) -> None:
    """Assert that everything was carried out, and nothing is left of it."""
    assert () == fsck(volume, read_data=True).problems
    assert [] == [path for folder in volume.glob("hdds/*/tmp/*") for path in folder.iterdir()]
    replica = StoredReplica(volume)
    for number in range(REPEATS):
        to_close, to_delete, to_shrink = containers(number)
        assert ReplicaState.CLOSED is replica.store.replica(to_close).state
        assert to_delete not in replica.store.replica_ids()
        assert [2] == [block_id for block_id, _ in replica.store.view(to_shrink).block_rows()]
    replica.close()
