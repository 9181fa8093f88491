"""A report that is too large for one hold of the lock is taken in part by part."""

from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.api.call_values import Heartbeat
from scm.api.calls import datanode_calls
from scm.cluster.replica_map import NodeReplicaReport
from suture.errors import UnavailableError
from tests.support.control.scm_world import ScmWorld, replica, volume


def page(*ids: int, report_id: int = 1, last: bool = True, number: int = 0) -> NodeReplicaReport:
    """Build a page of a full report of dn1."""
    replicas = tuple(replica("dn1", container_id=i) for i in ids)
    return NodeReplicaReport(True, report_id, number, is_last=last, replicas=replicas)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two replicas be as many as are taken in at once."""
    monkeypatch.setattr(datanode_calls, "REPORTED_AT_ONCE", 2)


def held(world: ScmWorld) -> set[int]:
    """Return the containers dn1 is known to hold."""
    return set(world.state.replicas.on("dn1"))


def test_report_parts_all_count_and_only_the_end_removes(tmp_path: Path) -> None:
    """The result is the same as if each page were applied at once."""
    with ScmWorld(tmp_path).running() as world:
        world.join("dn1")
        world.call("dn1", page(1, 2, 3, 4, 5))
        assert {1, 2, 3, 4, 5} == held(world)

        world.call("dn1", page(2, 3, 4, report_id=2, last=False))
        assert {1, 2, 3, 4, 5} == held(world)
        world.call("dn1", page(5, 6, 7, report_id=2, number=1))
        assert {2, 3, 4, 5, 6, 7} == held(world)


def test_report_abandoned_between_parts_is_applied_no_further(tmp_path: Path) -> None:
    """The parts applied so far stay, nothing is removed, and the whole report may be sent again."""
    with ScmWorld(tmp_path).running() as world:
        world.join("dn1")
        world.call("dn1", page(1, 9))
        waits = iter([True, True, False])
        call = Heartbeat("dn1", 1, (volume(),), (page(1, 2, 3, 4, 5, 6, report_id=2),), (), ())

        with pytest.raises(UnavailableError):
            world.control.datanodes.heartbeat(call, lambda: next(waits))

        assert {1, 2, 3, 4, 9} == held(world)
        world.call("dn1", page(1, 2, 3, 4, 5, 6, report_id=2))
        assert {1, 2, 3, 4, 5, 6} == held(world)


def test_replica_deleted_between_report_parts_stays_deleted(tmp_path: Path) -> None:
    """An incremental report of the same call is not older than the parts behind it."""
    with ScmWorld(tmp_path).running() as world:
        world.join("dn1")
        world.call("dn1", page(1, 2, 3, 4, last=False))
        gone = replica("dn1", ReplicaState.DELETED, container_id=5)
        some = NodeReplicaReport(False, 0, 0, is_last=True, replicas=(gone,))

        world.call("dn1", some, page(5, 6, 7, 8, number=1))

        assert {1, 2, 3, 4, 6, 7, 8} == held(world)
