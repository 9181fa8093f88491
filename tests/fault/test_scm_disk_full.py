"""A control plane whose disk is full: it says so, and logs nothing that did not happen."""

from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from health.cluster_verdict import DataVerdict
from merkle.replica import ReplicaState
from scm.api import responses
from scm.api.http_pages import HttpStatus
from scm.state.entities import ContainerState
from suture.errors import Code, UnavailableError
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.loop import WorkerLoops
from tests.support.control.scm_world import ScmWorld, confirm, container, replica
from tests.support.faults.small_disk import SmallDisk, small_disk
from tests.support.heard import logged

pytestmark = pytest.mark.fault

DONE = "container_state_changed"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A disk of 3 MiB."""
    with small_disk(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def world(disk: SmallDisk) -> Iterator[ScmWorld]:
    """Three nodes and a container that closes with the next report, on that disk, which is full."""
    with ScmWorld(disk.path / "scm").running() as made:
        made.join("dn1", "dn2", "dn3")
        made.made_closed()
        confirm(made, "dn1", "dn2", "dn3")
        made.control.tick()
        made.control.note_history()
        assert DataVerdict.WHOLE is made.control.queries.figures().verdict
        with made.state.change() as change:
            change.put(made.state.containers, container(ContainerState.CLOSING, container_id=9))
        disk.fill()
        with pytest.raises(UnavailableError):  # noqa: PT012 - what is free within the file is used up
            while True:
                with made.state.change() as change:
                    for _ in range(50):
                        number = change.next_id("next_container_id")
                        change.put(made.state.containers, container(container_id=1_000 + number))
        yield made


def report_closed(world: ScmWorld) -> None:
    """Let a datanode tell that its replica is closed, and much that is new beside."""
    told = [replica("dn1", ReplicaState.CLOSED, container_id=n) for n in range(9, 400)]
    world.beat("dn1", *told)


def test_rolled_back_change_on_a_full_disk_is_not_logged(world: ScmWorld, disk: SmallDisk) -> None:
    """The change is retried with every heartbeat. Logging each failed attempt would fill the log
    with changes that never happened.
    """
    with logged() as said:
        for _ in range(3):
            with pytest.raises(UnavailableError, match="No space left on device"):
                report_closed(world)
    assert [] == [line for line in said if line["event"] == DONE]

    disk.free()
    with logged() as said:
        report_closed(world)

    assert [(9, "CLOSED")] == [
        (line["container_id"], line["state"]) for line in said if line["event"] == DONE
    ]


def test_whoever_asks_is_told(world: ScmWorld) -> None:
    """Nothing is stored or repaired from then on, so no query may report a healthy cluster."""
    with pytest.raises(UnavailableError) as caught:
        report_closed(world)

    with CallThreadPool(2, 4) as calls:
        watched = HttpStatus(world.control, calls, WorkerLoops(), lambda: True)
        health, metrics = watched.healthz(), watched.metrics().body.decode()
        page = watched.page({}).body.decode()
    look, judgement = world.control.queries.judgement()
    counts = responses.counts_message(look.counts, judgement)

    assert Code.UNAVAILABLE is caught.value.code, "so that clients wait"
    assert "free space on the disk of the state" == caught.value.hint
    assert HTTPStatus.SERVICE_UNAVAILABLE == health.status
    assert b"the state cannot be written" in health.body
    assert "suture_scm_state_read_only 1.0" in metrics
    assert 'suture_scm_verdict{verdict="WHOLE"} 0.0' in metrics
    assert "the control plane: the state cannot be written" in page
    assert [True] == ["No space left" in text for text in counts.reasons if "written" in text]
    assert DataVerdict.WHOLE != counts.verdict
