"""The control plane and the judge of its snapshot say the same of every container."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from health.words import ELIGIBILITY
from merkle.replica import ID_MAX, ReplicaState
from scm.state.options import ScmOptions
from tests.support.control.agreement import Agreement, told_and_judged
from tests.support.control.booked import enter, sayable
from tests.support.control.scm_world import ScmWorld, confirm, pass_time, replica
from tests.support.simulation.random_days import RandomDays
from tests.support.sizes import size
from tests.support.verification.random_clusters import random_cluster

OPTIONS = ScmOptions(heartbeat_interval_ms=1_000, check_interval_ms=1_000)
CONTAINERS = 300
SEEDS = size(2, nightly=4)
TICKS = 4

SEED = 0  # docs/TESTING.md says how to live many more days
DAYS_CONTAINERS = 100
DAYS_SECONDS = 20


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_state_is_the_judges(tmp_path: Path, seed: int) -> None:
    """
    Random containers, nodes and commands, reported to a control plane that then works on them: in
    each tick the states that it exports are those of the judge over what it exports.
    """
    rows = sayable(random_cluster(random.Random(seed), CONTAINERS))
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        enter(world, rows)
        compared, words = 0, set[str]()
        for _ in range(TICKS):
            world.clock.advance_s(1)
            world.control.tick()
            told, judged = told_and_judged(world.control.queries.export_snapshot())
            known = {number: word for number, word in told.items() if word is not None}
            compared += len(known)
            words |= set(known.values())

            assert {number: judged[number] for number in known} == known
        assert compared > TICKS * CONTAINERS / 2
        assert len(words) >= 8, "random worlds are in many states"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_scm_and_snapshot_judge_agree_on_reconcile_eligibility(tmp_path: Path, seed: int) -> None:
    """The control plane decides for one container before a command, and the judge decides for
    all. Only the control plane knows the possible peers, and it repairs shards where the judge
    leaves them to Ozone.
    """
    rows = sayable(random_cluster(random.Random(seed), CONTAINERS))
    peers, told = {"OK", "NOT_ENOUGH_REACHABLE_REPLICAS", "RECONCILE_PENDING"}, set[str]()
    with ScmWorld(tmp_path, OPTIONS).running() as world:
        enter(world, rows)
        ids = sorted(container.container_id for container in world.state.containers.values())
        found = world.control.judge.diagnose(ids).reconciles.eligibility.tolist()
        for container_id, code in zip(ids, found, strict=True):
            judged = ELIGIBILITY[code]
            own = world.control.reconciles.participants(container_id).eligibility
            container = world.state.containers.get(container_id)
            assert container is not None
            told.add(judged)
            if judged in peers or (judged == "INELIGIBLE_REPLICATION_TYPE" and container.scheme):
                assert own in {"OK", "NO_REACHABLE_PEER", "NOT_ENOUGH_REQUIRED_NODES"}
            else:
                assert judged == own, f"container {container_id}"
    assert len(told) >= 5, "random worlds have many reasons"


@pytest.mark.slow
def test_whatever_happens_they_agree_at_every_second(tmp_path: Path) -> None:
    """
    Nodes die and return, replicas are damaged, commands are carried out or not, operators ask for
    this and that.
    """
    agreement = Agreement()
    days = RandomDays(tmp_path, SEED, DAYS_CONTAINERS)
    with days.world.running():
        for second in range(DAYS_SECONDS):
            days.step()
            agreement.compare(days.world.control.queries.export_snapshot(), f"second {second}")

    assert [] == agreement.differences
    assert agreement.compared > DAYS_SECONDS * DAYS_CONTAINERS / 2
    assert len(agreement.states) >= 10, "anything happens"


def one_rack(path: Path) -> ScmWorld:
    """Return a world of three nodes on one rack, and six whole containers; all have been judged."""
    world = ScmWorld(path, ScmOptions(check_interval_ms=10_000))
    world.join("dn1", "dn2", "dn3")
    confirm(world, "dn1", "dn2", "dn3")
    for _ in range(6):
        world.made_closed()
    pass_time(world, 11, "dn1", "dn2", "dn3")
    return world


def test_second_rack_makes_all_containers_judged_again(tmp_path: Path) -> None:
    """Three replicas on one rack were enough while there was no other. A container has no state
    until it is judged again, and after a round all have been, also the healthy ones.
    """
    with one_rack(tmp_path).running() as world:
        before, _ = told_and_judged(world.control.queries.export_snapshot())
        world.join("dn4", racks=("/rack-2",))
        world.beat("dn4", full=True)
        world.control.tick()
        told, judged = told_and_judged(world.control.queries.export_snapshot())
        pass_time(world, 11, "dn1", "dn2", "dn3", "dn4")
        at_last, judged_at_last = told_and_judged(world.control.queries.export_snapshot())

        assert {"HEALTHY"} == set(before.values())
        known = {number: word for number, word in told.items() if word is not None}
        assert {"MIS_REPLICATED"} == set(judged.values())
        assert len(known) < len(judged)
        assert {number: judged[number] for number in known} == known
        assert judged_at_last == at_last


def test_stale_state_of_a_dead_nodes_containers_is_not_exported(tmp_path: Path) -> None:
    """The death is in the snapshot before its containers are judged, so no state is exported."""
    with one_rack(tmp_path).running() as world:
        world.clock.advance_s(100)
        world.keep_alive("dn1", "dn2")
        told, judged = told_and_judged(world.control.queries.export_snapshot())

        assert {"UNDER_REPLICATED"} == set(judged.values())
        assert {None} == set(told.values())


def test_a_container_that_is_whole_again_is_called_so(tmp_path: Path) -> None:
    """The state from the time without the replica does not stay for ever."""
    with one_rack(tmp_path).running() as world:
        lost = world.state.replicas.get((1, "dn3"))
        assert lost is not None
        world.beat("dn3", replace(lost, state=ReplicaState.DELETED))
        pass_time(world, 11, "dn1", "dn2", "dn3")
        told, judged = told_and_judged(world.control.queries.export_snapshot())
        world.beat("dn3", lost)
        pass_time(world, 11, "dn1", "dn2", "dn3")
        again, judged_again = told_and_judged(world.control.queries.export_snapshot())

        assert "UNDER_REPLICATED" == told[1] == judged[1]
        assert judged_again == again
        assert {"HEALTHY"} == set(again.values())


def test_a_container_that_nobody_made_costs_nothing(tmp_path: Path) -> None:
    """
    Its id may be any number: marks are kept for the ids that were given out here.
    """
    with one_rack(tmp_path).running() as world:
        world.beat("dn1", replica("dn1", container_id=ID_MAX))
        pass_time(world, 20, "dn2", "dn3")  # all that a stale node has is looked at
        pass_time(world, 11, "dn1", "dn2", "dn3")
        told, judged = told_and_judged(world.control.queries.export_snapshot())

        assert judged == told
        assert ID_MAX not in told
