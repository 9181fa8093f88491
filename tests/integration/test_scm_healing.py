"""The control plane orders damaged and differing replicas reconciled, with no Spark anywhere."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from merkle.replica import ReplicaState
from scm.facts import Container, Kind, Replica
from scm.options import ScmOptions
from tests.support.scm_world import ScmWorld, container, outcome, pass_time, replica, summary

NODES = ("dn1", "dn2", "dn3")
OPTIONS = ScmOptions(heal_after_ms=10_000, reconcile_cooldown_ms=30_000, check_interval_ms=60_000)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Three nodes."""
    with made(tmp_path) as world:
        yield world


def made(path: Path, options: ScmOptions = OPTIONS) -> AbstractContextManager[ScmWorld]:
    """Return a world whose three nodes have joined and named all they have."""
    world = ScmWorld(path, options)
    world.join(*NODES)
    for node in NODES:
        world.beat(node, full=True)
    return world.running()


def held(world: ScmWorld, node: str, box: Container) -> Replica:
    """Return what a node reported last."""
    found = world.state.replicas.get((box.container_id, node))
    assert found is not None
    return found


def ordered(world: ScmWorld) -> dict[str, str]:
    """Return the datanodes that are to reconcile, and why."""
    return {
        command.datanode_id: command.why
        for command in world.state.commands.values()
        if command.kind is Kind.RECONCILE
    }


def test_a_finding_is_repaired_once_reports_have_settled(world: ScmWorld) -> None:
    """Not at once, and then with who decided it and why."""
    box = world.made_closed()
    world.beat("dn2", replace(held(world, "dn2", box), finding_count=1))
    pass_time(world, 9, *NODES)
    early = ordered(world)

    pass_time(world, 2, *NODES)

    assert {} == early
    assert dict.fromkeys(NODES, "control plane: scan findings") == ordered(world)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tree": summary(8)}, "roots differ, minority"),
        ({"state": ReplicaState.UNHEALTHY}, "replica UNHEALTHY"),
        ({"tree": summary(8), "finding_count": 2}, "roots differ, minority; scan findings"),
    ],
)
def test_whatever_a_plan_would_reconcile_is_reconciled(
    world: ScmWorld, change: dict[str, object], why: str
) -> None:
    """The reasons are the judge's."""
    box = world.made_closed()
    world.beat("dn2", replace(held(world, "dn2", box), **change))  # type: ignore[arg-type]

    pass_time(world, 12, *NODES)

    assert {f"control plane: {why}"} == set(ordered(world).values())


@pytest.mark.parametrize(
    "change",
    [
        {"tree": None},
        {"is_contradictory": True},
    ],
    ids=["its root is not known", "replicas contradict each other"],
)
def test_what_a_reconcile_cannot_decide_is_left_alone(
    world: ScmWorld, change: dict[str, object]
) -> None:
    """An unknown root says nothing; a contradiction is for a person."""
    box = world.made_closed()
    world.beat("dn2", replace(held(world, "dn2", box), **change))  # type: ignore[arg-type]

    pass_time(world, 90, *NODES)

    assert {} == ordered(world)


def test_a_contradiction_keeps_no_other_damage(world: ScmWorld) -> None:
    """What can be repaired beside it is."""
    box = world.made_closed()
    world.beat("dn2", replace(held(world, "dn2", box), is_contradictory=True, finding_count=1))

    pass_time(world, 12, *NODES)

    why = "control plane: replicas contradict each other; scan findings"
    assert {why} == set(ordered(world).values())


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    """Then only people and plans order a reconcile."""
    with made(tmp_path, replace(OPTIONS, heal=False)) as world:
        box = world.made_closed()
        world.beat("dn2", replace(held(world, "dn2", box), finding_count=1))

        pass_time(world, 90, *NODES)

        assert {} == ordered(world)


def test_other_tombstones_are_given_time(world: ScmWorld) -> None:
    """Datanodes delete one after the other; who still differs after a while missed a delete."""
    box = world.made_closed()
    world.beat("dn2", replace(held(world, "dn2", box), tree=summary(7, tombstones=5)))
    pass_time(world, 55, *NODES)
    early = ordered(world)

    pass_time(world, 10, *NODES)

    assert {} == early
    assert {"control plane: tombstones differ"} == set(ordered(world).values())


def test_deletes_that_are_owed_explain_a_difference(world: ScmWorld) -> None:
    """Two datanodes have deleted what a third is still to delete: nothing is ordered meanwhile."""
    box = world.made_closed()
    world.control.delete_keys([key.name for key in world.state.keys.values()], dry_run=False)
    for node in ("dn1", "dn2"):
        for command, _named in world.call(node).commands:
            done = tuple((t.container_id, t.transaction_id) for t in command.transactions)
            world.beat(node, outcomes=(replace(outcome(command), acknowledged=done),))
        world.beat(node, replace(held(world, node, box), tree=summary(8, tombstones=5)))

    pass_time(world, 90, "dn1", "dn2")  # the third was told nothing, and stays silent

    assert {} == ordered(world)


def test_what_does_not_help_is_not_ordered_for_ever(world: ScmWorld) -> None:
    """Three times, each after a longer pause; then the replicas must change or a person asks."""
    box = world.made_closed()
    world.beat("dn2", replace(held(world, "dn2", box), tree=summary(8)))
    seconds = []
    for second in range(600):
        pass_time(world, 1)
        if ordered(world):
            seconds.append(second)
        for node in NODES * 2:
            world.execute(node, world.call(node))
    before = len(seconds)
    world.beat("dn2", replace(held(world, "dn2", box), tree=summary(9)))
    pass_time(world, 12, *NODES)

    assert 3 == before
    assert {"control plane: roots differ, minority"} == set(ordered(world).values())


def test_a_shard_is_mended_from_its_stripe(tmp_path: Path) -> None:
    """An erasure-coded container with a damaged shard, and enough others to compute it from."""
    world = ScmWorld(tmp_path, OPTIONS)
    nodes = [f"dn{i}" for i in range(1, 6)]
    with world.running():
        world.join(*nodes)
        for node in nodes:
            world.beat(node, full=True)
        coded = replace(container(), scheme="rs-3-2-1024k", replication_factor=5, committed_count=1)
        with world.state.change() as change:
            change.put(world.state.containers, coded)
            change.next_id("next_container_id")
        for index, node in enumerate(nodes, 1):
            world.beat(
                node, replica(node, root=index, replica_index=index, finding_count=index == 4)
            )

        pass_time(world, 12, *nodes)

        assert "control plane: scan findings" == ordered(world)["dn4"]
