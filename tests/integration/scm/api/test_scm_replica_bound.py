"""How many replicas a datanode may report: what its volumes can hold, whoever calls."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from scm.api.call_values import Heartbeat
from scm.cluster import replica_map
from scm.cluster.replica_map import NodeReplicaReport, replicas_max
from tests.support.control.scm_world import GIB, ScmWorld, replica, volume

TIB = 1024 * GIB


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any datanode have 10 replicas at least, so that a small disk bounds them."""
    monkeypatch.setattr(replica_map, "REPLICAS_MIN", 10)


def call(
    world: ScmWorld, ids: Sequence[int], *, full: bool = False, page: int = 0, last: bool = True
) -> None:
    """Let dn1, which has a disk of 5 GiB, and so 20 replicas at most, report."""
    told = tuple(replica("dn1", container_id=number) for number in ids)
    report = NodeReplicaReport(full, 1, page, is_last=last, replicas=told)
    disk = volume(capacity_bytes=5 * GIB)
    world.control.datanodes.heartbeat(Heartbeat("dn1", 1, (disk,), (report,), (), (), None, 0))


def held(world: ScmWorld) -> set[int]:
    """Return the containers of which dn1 is known to have a replica."""
    return set(world.state.replicas.on("dn1"))


def said(world: ScmWorld) -> str:
    """Return what an operator sees of it."""
    return " ".join(world.control.queries.cluster_facts()[0].refused)


@pytest.mark.parametrize("full", [True, False])
def test_replicas_beyond_the_bound_are_left_out_of_a_report(tmp_path: Path, full: bool) -> None:
    """The report is processed: the first replicas count, and the operator is informed."""
    with ScmWorld(tmp_path).running() as world:
        world.join("dn1")
        call(world, range(1, 31), full=full)

        assert set(range(1, 21)) == held(world)
        assert "dn1: reports: more than 20 replicas, which is what its volumes can hold; 10 " in (
            said(world)
        )


def test_pages_and_calls_together_are_bounded(tmp_path: Path) -> None:
    """The bound covers pages and calls together, and a page without end does not take memory
    without end.
    """
    with ScmWorld(tmp_path).running() as world:
        world.join("dn1")
        for page in range(5):
            call(world, range(1 + 10 * page, 11 + 10 * page), full=True, page=page, last=False)
        assert set(range(1, 21)) == held(world)
        for page in range(5, 50):
            call(world, range(1, 21), full=True, page=page, last=False)
        assembly = world.control.reports._assemblies["dn1"]
        assert assembly.named_count <= 3 * 20
        for number in range(100, 130):
            call(world, [number])

        assert set(range(1, 21)) == held(world)


def test_known_replicas_are_updated_and_free_room_when_deleted(tmp_path: Path) -> None:
    """A full datanode may delete one replica and get another."""
    with ScmWorld(tmp_path).running() as world:
        world.join("dn1")
        call(world, range(1, 21), full=True)
        assert "" == said(world)

        call(world, [*range(2, 21), 99], full=True)
        left_out = held(world)
        call(world, [*range(2, 21), 99], full=True)

        assert set(range(2, 21)) == left_out
        assert {*range(2, 21), 99} == held(world)


@pytest.mark.parametrize(
    ("capacity_bytes", "count"),
    [(0, 20_000), (TIB, 20_000), (100 * TIB, 409_600), (2**62, 500_000)],
)
def test_the_bound_follows_the_capacity(
    monkeypatch: pytest.MonkeyPatch, capacity_bytes: int, count: int
) -> None:
    """
    A datanode may claim any capacity: there is a bound of bounds.
    """
    monkeypatch.setattr(replica_map, "REPLICAS_MIN", 20_000)

    assert count == replicas_max(capacity_bytes)
