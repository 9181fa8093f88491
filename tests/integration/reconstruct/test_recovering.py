"""What reconstructions leave behind is given up in time, and never stands in the way."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host.recovering_replicas import RecoveringReplicas
from merkle.replica import ContainerId, ReplicaState
from suture.errors import Code, RefusedError, UnavailableError
from tests.support.clock import FakeClock
from tests.support.storage.stored_replica import StoredReplica

MADE = ContainerId(9)
TIMEOUT_S = 30.0


class Desk:
    """A store and its recoveries, with a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        self.replica = StoredReplica(path)
        self.clock = FakeClock()
        self.scans: list[int] = []
        self.recoveries = self.started()

    def started(self) -> RecoveringReplicas:
        """Return the recoveries of an agent that has just started."""
        return RecoveringReplicas(
            self.replica.store,
            self.replica.leases,
            self.clock,
            timeout_s=TIMEOUT_S,
            scan=self.scans.append,
        )

    def restart(self) -> None:
        """Stop and start."""
        self.replica.close()
        self.replica.reopen()
        self.recoveries = self.started()

    def state(self, container_id: ContainerId = MADE) -> ReplicaState:
        """Return a replica's state."""
        return self.replica.store.replica(container_id).state


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Return a store with nothing in it."""
    made = Desk(tmp_path)
    yield made
    made.replica.close()


def test_a_second_run_is_refused_while_the_first_writes(desk: Desk) -> None:
    """A run that has just written is alive. The other gets BUSY, and the replica stays as it is."""
    desk.recoveries.create(MADE, 2)
    desk.clock.advance_s(TIMEOUT_S - 1)
    desk.recoveries.record_write(MADE)
    desk.clock.advance_s(TIMEOUT_S - 1)

    with pytest.raises(UnavailableError) as caught:
        desk.recoveries.create(MADE, 2)
    desk.recoveries.step()

    assert Code.BUSY is caught.value.code
    assert ReplicaState.RECOVERING is desk.state()


def test_a_run_that_is_silent_is_given_up(desk: Desk) -> None:
    """
    After the timeout the replica is UNHEALTHY, and the next run puts its own in its place.
    """
    desk.recoveries.create(MADE, 2)
    desk.clock.advance_s(TIMEOUT_S)

    desk.recoveries.step()
    expired = desk.state()
    desk.recoveries.create(MADE, 2)

    assert ReplicaState.UNHEALTHY is expired
    assert ReplicaState.RECOVERING is desk.state()


def test_shard_interrupted_by_a_restart_is_replaced(desk: Desk) -> None:
    """After a restart the shard is UNHEALTHY, and the next run of the same shard replaces it."""
    desk.recoveries.create(MADE, 2)
    desk.restart()
    interrupted = desk.state()

    desk.recoveries.create(MADE, 2)

    assert ReplicaState.UNHEALTHY is interrupted
    assert ReplicaState.RECOVERING is desk.state()


def test_a_shard_of_another_index_is_not_replaced(desk: Desk) -> None:
    """The remains of another shard are not removed by this run."""
    desk.recoveries.create(MADE, 2)
    desk.restart()

    with pytest.raises(RefusedError) as caught:
        desk.recoveries.create(MADE, 3)

    assert Code.CONTAINER_EXISTS is caught.value.code
    assert 2 == desk.replica.store.replica(MADE).replica_index


@pytest.mark.parametrize("damaged", [False, True])
def test_a_replica_that_was_once_whole_is_never_replaced(desk: Desk, damaged: bool) -> None:
    """
    A closed replica stays, and so does one that is UNHEALTHY and was closed before: it may hold
    the last good copy of some chunk.
    """
    desk.replica.create(MADE)
    if damaged:
        desk.replica.file(1, MADE).unlink()
        desk.replica.scan(MADE)
        assert ReplicaState.UNHEALTHY is desk.state()
    before = desk.state()

    with pytest.raises(RefusedError) as caught:
        desk.recoveries.create(MADE, 0)

    assert Code.CONTAINER_EXISTS is caught.value.code
    assert before is desk.state()


def test_a_completed_replica_is_scanned_and_forgotten(desk: Desk) -> None:
    """
    A close ends the recovery: a scan is asked for once, and no timeout touches it.
    """
    desk.recoveries.create(MADE, 2)
    desk.replica.store.close_container(MADE, bcsid=0, force=True)

    desk.recoveries.closed(MADE)
    desk.recoveries.closed(MADE)
    desk.clock.advance_s(2 * TIMEOUT_S)
    desk.recoveries.step()

    assert [MADE] == desk.scans
    assert ReplicaState.CLOSED is desk.state()


def test_a_removed_replica_is_forgotten(desk: Desk) -> None:
    """The next run starts at once."""
    desk.recoveries.create(MADE, 2)
    desk.replica.store.delete_container(MADE, force=True)

    desk.recoveries.create(MADE, 4)
    desk.recoveries.step()

    assert 4 == desk.replica.store.replica(MADE).replica_index
