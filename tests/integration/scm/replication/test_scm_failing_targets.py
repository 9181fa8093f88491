"""A datanode that takes no copies keeps no container from being whole, and excludes no source."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scm.cluster.commands.failing_targets import REST_S, FailingTargets
from scm.state.clock import ScmClock
from scm.state.entities import CommandKind, Container, OutcomeState
from scm.state.options import ScmOptions
from tests.support.clock import FakeClock
from tests.support.control.scm_world import ScmWorld, outcome, pending

OPTIONS = ScmOptions.model_construct(  # longer than the bounds allow
    stale_after_ms=1_000_000_000,
    dead_after_ms=2_000_000_000,
    close_retry_ms=20,
    check_interval_ms=1_000,
    exclude_failure_count=3,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Nobody has joined yet."""
    with ScmWorld(tmp_path, OPTIONS).running() as made:
        yield made


def short_of_one(world: ScmWorld, *nodes: str) -> Container:
    """Return a closed container that has lost one of its three replicas."""
    world.join(*nodes)
    made = world.made_closed()
    lost = world.state.replicas.of(made.container_id)[0].datanode_id
    world.beat(lost, full=True)
    return made


def run(world: ScmWorld, container: Container, nodes: tuple[str, ...], bad: str) -> Counter[str]:
    """Let ten minutes pass, in which copies to `bad` fail; return the copies by target. An empty
    `bad` is the first target."""
    [good, *_] = world.state.replicas.of(container.container_id)
    targets: Counter[str] = Counter()
    for _ in range(120):
        world.clock.advance_s(5)
        world.control.tick()
        for node in nodes:
            for command, _named in world.call(node).commands:
                if command.kind is not CommandKind.REPLICATE:
                    continue
                targets[command.target_id] += 1
                bad = bad or command.target_id
                if command.target_id == bad:
                    failed = outcome(command, OutcomeState.FAILED, code="UNAVAILABLE")
                    world.beat(node, outcomes=(failed,))
                else:
                    world.beat(node, outcomes=(outcome(command),))
                    world.beat(command.target_id, replace(good, datanode_id=command.target_id))
    return targets


def test_a_copy_that_failed_goes_to_another_datanode_the_next_time(world: ScmWorld) -> None:
    """
    The one that failed has the least to do, as it takes nothing, and would be chosen for ever.
    """
    nodes = ("dn1", "dn2", "dn3", "dn4", "dn5")
    container = short_of_one(world, *nodes)

    targets = run(world, container, nodes, bad="")

    assert [1, 1] == list(targets.values())
    assert 3 == len(world.state.replicas.of(container.container_id))
    assert [] == world.control.holding.holds()


def test_the_only_other_datanode_that_takes_nothing_excludes_no_source(world: ScmWorld) -> None:
    """Both sources fail because of the target alone. After its repair no operator has to release
    them.
    """
    nodes = ("dn1", "dn2", "dn3")
    container = short_of_one(world, *nodes)

    failed = run(world, container, nodes, bad="")

    [bad] = failed
    assert failed[bad] > 2 * OPTIONS.exclude_failure_count
    assert [] == world.control.holding.holds()
    run(world, container, nodes, bad="mended")
    assert 3 == len(world.state.replicas.of(container.container_id))


def test_failed_targets_are_forgotten_after_a_while(world: ScmWorld) -> None:
    """Millions of containers may fail once, so the memory is bounded."""
    nodes = ("dn1", "dn2", "dn3", "dn4")
    container = short_of_one(world, *nodes)
    failing = world.control.commands.failing_targets
    run(world, container, nodes, bad="")
    assert failing.of(container.container_id)

    world.clock.advance_s(REST_S)
    world.control.tick()

    assert not failing.of(container.container_id)


def test_a_datanode_that_failed_is_forgiven() -> None:
    """
    After a while, or when something succeeds there; of shards each target is meant.
    """
    clock = FakeClock()
    failing = FailingTargets(ScmClock(clock.now_ms, clock.monotonic_s))
    rebuild = replace(
        pending(1, CommandKind.RECONSTRUCT, container_id=7), shards=((1, "a"), (2, "b"))
    )
    copy = replace(pending(2, CommandKind.REPLICATE, container_id=7), target_id="a")
    failing.record_outcome(rebuild, outcome(rebuild, OutcomeState.FAILED))

    assert {"a", "b"} == failing.of(7).keys()
    assert not failing.of(8)
    failing.record_outcome(copy, outcome(copy))
    assert {"b"} == failing.of(7).keys()
    clock.advance_s(REST_S - 1)
    failing.forget_old()
    assert {"b"} == failing.of(7).keys()
    clock.advance_s(1)
    failing.forget_old()
    assert not failing.of(7)
