"""Who is told that it has the last healthy copy: nobody too late, nobody without need."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.cluster import last_copies
from scm.state.entities import Replica
from suture.errors import Code, UnavailableError
from tests.support.control.scm_world import ScmWorld, replica, with_whole_replicas

NODES = ("a", "b", "c")


def told(world: ScmWorld, *nodes: str) -> dict[str, tuple[int, ...]]:
    """Return what each node is told at its next call."""
    return {node: world.call(node).last_copies for node in nodes}


@pytest.fixture
def world(tmp_path: Path) -> ScmWorld:
    """Return a cluster of three nodes, each with a whole replica of container 1."""
    return with_whole_replicas(tmp_path, *NODES)


@pytest.mark.parametrize(
    "worse",
    [
        {"state": ReplicaState.UNHEALTHY},
        {"state": ReplicaState.DELETED},
        {"finding_count": 1},
        {"load_error": "damaged"},
    ],
)
def test_the_last_one_whole_is_told_until_another_is_healed(
    world: ScmWorld, worse: dict[str, object]
) -> None:
    """Two healthy copies are no reason to hurry; one is, whatever is wrong with the others."""
    assert {"a": (), "b": (), "c": ()} == told(world, *NODES)

    world.beat("a", replica("a", **worse))  # type: ignore[arg-type]
    assert {"a": (), "b": (), "c": ()} == told(world, *NODES)

    world.beat("b", replica("b", **worse))  # type: ignore[arg-type]
    assert {"a": (), "b": (), "c": (1,)} == told(world, *NODES)

    world.beat("a", replica("a"))
    assert {"a": (), "b": (), "c": ()} == told(world, *NODES)
    world.state.close()


def test_copies_on_dead_nodes_do_not_count(world: ScmWorld) -> None:
    """The copies count again when the node calls."""
    world.clock.advance_s(world.options.dead_after_ms / 1000 + 1)
    world.keep_alive("c")
    world.control.tick()
    assert {"c": (1,)} == told(world, "c")

    world.join("a")
    world.control.tick()
    assert {"c": ()} == told(world, "c")
    world.state.close()


def test_last_copies_are_known_after_a_restart(world: ScmWorld) -> None:
    """The last copies are computed from the earlier reports."""
    for node in ("a", "b"):
        world.beat(node, replica(node, ReplicaState.UNHEALTHY))
    world.restart()
    world.join("c")

    assert {"c": (1,)} == told(world, "c")
    world.state.close()


def test_shards_are_no_copies_of_each_other(world: ScmWorld) -> None:
    """Every shard of an erasure-coded container is the only one of its index."""
    world.beat("a", replica("a", container_id=2, replica_index=1))

    assert {"a": ()} == told(world, "a")
    world.state.close()


def test_the_list_is_bounded_by_age(world: ScmWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound, those that were scanned longest ago are named."""
    monkeypatch.setattr(last_copies, "LAST_COPIES_MAX", 2)
    ages = {11: 300, 12: 100, 13: 200}
    world.beat("a", *(aged(number, read_at_ms) for number, read_at_ms in ages.items()))

    assert {"a": (12, 13)} == told(world, "a")
    world.state.close()


def test_last_copies_are_counted_in_portions_by_heartbeats(
    world: ScmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart no single heartbeat waits until all containers are counted."""
    monkeypatch.setattr(last_copies, "COUNTED_MAX", 1)
    world.beat("a", *(replica("a", container_id=number) for number in range(11, 17)))

    lengths = [len(world.call("a").last_copies) for _ in range(8)]

    assert {0, 1} >= {later - earlier for earlier, later in pairwise(lengths)}
    assert lengths[0] < lengths[-1]
    assert 6 == lengths[-1]
    world.state.close()


def aged(container_id: int, data_scan_at_ms: int) -> Replica:
    """Return a replica that was read at that time."""
    return replace(replica("a", container_id=container_id), data_scan_at_ms=data_scan_at_ms)


def test_a_change_that_came_to_nothing_is_counted_back(
    world: ScmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that could not be kept has not happened."""
    world.beat("a", replica("a", ReplicaState.UNHEALTHY))

    def fail(_change: object) -> None:
        raise UnavailableError(
            Code.DISK_OUT_OF_SPACE, "cannot write the state: its database is full"
        )

    with monkeypatch.context() as patch:
        patch.setattr(world.state, "_commit", fail)
        with pytest.raises(UnavailableError):
            world.beat("b", replica("b", ReplicaState.UNHEALTHY))

    assert {"c": ()} == told(world, "c")
    world.state.close()
