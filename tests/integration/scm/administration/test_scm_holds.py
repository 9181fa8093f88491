"""What is suppressed or excluded is left alone, on disk, until a person releases it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scm.cluster.commands.failing_replicas import HOLD_REST_MS
from scm.replication.reconcile.plan_check import PlanReplica, PlanRow
from scm.state.entities import CommandKind, Container, Hold, OutcomeState
from scm.state.options import ScmOptions
from tests.support.control.scm_world import ScmWorld, confirm, outcome

NODES = ("dn1", "dn2", "dn3", "dn4")
OPTIONS = ScmOptions(
    stale_after_ms=1_000_000,
    dead_after_ms=2_000_000,
    close_retry_ms=20,
    check_interval_ms=1_000,
    exclude_failure_count=3,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        made.join(*NODES)
        yield made


@pytest.fixture
def short(world: ScmWorld) -> Container:
    """A closed container that has lost one of its three replicas."""
    made = world.made_closed()
    lost = world.state.replicas.of(made.container_id)[0].datanode_id
    world.beat(lost, full=True)
    return made


def copies(world: ScmWorld) -> list[str]:
    """Let a second pass; return the sources of the copies under way."""
    world.clock.advance_s(1)
    world.control.tick()
    commands = world.state.commands.values()
    return [command.datanode_id for command in commands if command.kind is CommandKind.REPLICATE]


def test_a_suppressed_container_is_left_alone_until_released(
    world: ScmWorld, short: Container
) -> None:
    """The container is left alone by plans and after a restart, and it is not in the report."""
    number = short.container_id
    world.control.holding.hold([number], "")
    held = copies(world)
    row = PlanRow(number, (), "", action="replicate", copies=1)
    planned = world.control.plans.apply_plan([row], dry_run=False)[0].code
    report = world.control.queries.report().conditions
    world.restart()
    kept = world.control.holding.holds()
    for replica in world.state.replicas.of(number):
        world.join(replica.datanode_id)
        world.beat(replica.datanode_id, replica, full=True)
    world.control.safe_mode.leave()
    still = copies(world)
    world.control.holding.release([number], "")
    world.join(*NODES)
    for replica in world.state.replicas.of(number):
        world.beat(replica.datanode_id, replica, full=True)

    assert ([], "SUPPRESSED", {}, []) == (held, planned, dict(report), still)
    assert [number] == [hold.container_id for hold in kept]
    assert 1 == len(copies(world))


def test_a_replica_that_fails_again_and_again_is_excluded(
    world: ScmWorld, short: Container
) -> None:
    """Three failures in a row, and the other replica is copied; the release brings it back."""
    failing = set()
    for _ in range(20):
        for source in copies(world):
            for command, _named in world.call(source).commands:
                failed = outcome(command, OutcomeState.FAILED, code="UNAVAILABLE")
                world.beat(source, outcomes=(failed,))
                failing.add(source)
        world.clock.advance_s(5)
    (first, second) = sorted(failing)
    excluded = world.control.holding.holds()

    assert {(short.container_id, node) for node in (first, second)} == {
        (hold.container_id, hold.datanode_id) for hold in excluded
    }
    assert all("3 failures in a row" in hold.reason for hold in excluded)
    assert [] == copies(world)
    world.control.holding.release([short.container_id], second)
    assert [second] == copies(world)


def test_an_excluded_replica_gets_another_chance(world: ScmWorld, short: Container) -> None:
    """An outage ends at some time, without an operator's action. A replica held by an operator
    stays held.
    """
    number, [one, other] = short.container_id, world.state.replicas.of(short.container_id)
    for replica in (one, other):
        with world.state.change() as change:
            hold = Hold(number, replica.datanode_id, world.clock.now_ms(), "3 failures in a row")
            change.put(world.state.holds, hold)
    assert [] == copies(world)
    world.control.holding.release([number], other.datanode_id)
    world.control.holding.hold([number], other.datanode_id)

    world.clock.advance_s(HOLD_REST_MS / 1000 - 3)
    world.keep_alive(*NODES)
    before = copies(world)
    world.clock.advance_s(1)

    assert [] == before
    assert [one.datanode_id] == copies(world)
    assert [other.datanode_id] == [hold.datanode_id for hold in world.state.holds.values()]


def test_an_excluded_replica_gets_another_chance_when_the_clock_was_ahead(
    world: ScmWorld, short: Container
) -> None:
    """A hold with a time in the future is released once the clock is right again."""
    [one, _other] = world.state.replicas.of(short.container_id)
    ahead_ms = world.clock.now_ms() + 86_400_000
    with world.state.change() as change:
        hold = Hold(short.container_id, one.datanode_id, ahead_ms, "3 failures in a row")
        change.put(world.state.holds, hold)

    world.control.tick()

    assert [] == world.state.holds.values()


def test_a_replica_is_not_excluded_because_others_cannot_prove_what_it_has(
    world: ScmWorld,
) -> None:
    """The others are damaged. If the complete replica were excluded, it could not be copied."""
    made = world.made_closed()
    spare = ({*NODES} - {r.datanode_id for r in world.state.replicas.of(made.container_id)}).pop()
    [extra, *_] = world.state.replicas.of(made.container_id)
    world.beat(spare, replace(extra, datanode_id=spare))
    confirm(world, *NODES)
    count = 0
    for _ in range(40):
        world.clock.advance_s(5)
        world.control.tick()
        for node in NODES:
            for command, _named in world.call(node).commands:
                if command.kind is CommandKind.DELETE:
                    failed = outcome(command, OutcomeState.FAILED, code="NOT_PROVEN")
                    world.beat(node, outcomes=(failed,))
                    count += 1

    assert count > OPTIONS.exclude_failure_count
    assert not world.control.holding.holds()


def test_an_excluded_replica_is_not_reconciled_by_plans(world: ScmWorld) -> None:
    """The other replicas are reconciled. If all are excluded, no command is sent, and the plan
    gets the reason.
    """
    made = world.made_closed(roots=(7, 7, 8))
    number, replicas = made.container_id, world.state.replicas.of(made.container_id)
    seen = tuple(
        PlanReplica(r.datanode_id, r.state, r.tree.root) for r in replicas if r.tree is not None
    )
    row = PlanRow(number, seen, "MISMATCH_MINORITY")
    holders = [r.datanode_id for r in replicas]
    world.control.holding.hold([number], holders[0])

    some = world.control.plans.apply_plan([row], dry_run=False)
    ordered = {
        c.datanode_id for c in world.state.commands.values() if c.kind is CommandKind.RECONCILE
    }
    for node in holders[1:]:
        world.control.holding.hold([number], node)
    world.clock.advance_s(500)
    none = world.control.plans.apply_plan([row], dry_run=False)

    assert ["OK"] == [d.code for d in some]
    assert set(holders[1:]) == ordered
    assert ["EXCLUDED"] == [d.code for d in none]
