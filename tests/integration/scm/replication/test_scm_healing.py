"""The control plane orders damaged and differing replicas reconciled, with no Spark anywhere."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from merkle.replica import LAYOUT_VERSION, ReplicaState
from scm.cluster.commands import command_limits
from scm.replication.reconcile import auto_reconcile
from scm.state.entities import CommandKind, Container, ContainerState, Replica
from scm.state.options import ScmOptions
from tests.support.control.scm_world import (
    ScmWorld,
    container,
    outcome,
    pass_time,
    replica,
    summary,
)

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
        if command.kind is CommandKind.RECONCILE
    }


def containers_ordered(world: ScmWorld) -> set[int]:
    """Return the containers that are to be reconciled."""
    return {
        c.container_id for c in world.state.commands.values() if c.kind is CommandKind.RECONCILE
    }


def test_a_finding_is_repaired_once_reports_have_settled(world: ScmWorld) -> None:
    """The repair is not ordered at once. Its order names who decided it and why."""
    box = world.made_closed()
    world.beat("dn2", replace(held(world, "dn2", box), finding_count=1))
    pass_time(world, 9, *NODES)
    early = ordered(world)

    pass_time(world, 2, *NODES)

    assert {} == early
    assert dict.fromkeys(NODES, "control plane: scan findings") == ordered(world)


@pytest.mark.parametrize(
    "change",
    [
        {"state": ReplicaState.OPEN, "tree": None},
        {"state": ReplicaState.RECOVERING, "tree": None},
        {"state": ReplicaState.UNHEALTHY, "load_error": "the volume failed", "tree": None},
    ],
)
def test_a_replica_that_cannot_take_part_holds_up_no_other(
    world: ScmWorld, change: dict[str, object]
) -> None:
    """The participants get its id as that of a holder that cannot be asked."""
    box = world.made_closed()
    world.beat("dn3", replace(held(world, "dn3", box), **change))  # type: ignore[arg-type]
    world.beat("dn2", replace(held(world, "dn2", box), finding_count=1))

    pass_time(world, 11, *NODES)

    sent = [
        (command.datanode_id, [h.replica.datanode_id for h in command.holders], endpoints)
        for node in NODES
        for command, endpoints in world.call(node).commands
        if command.kind is CommandKind.RECONCILE
    ]
    assert {"dn1", "dn2"} == {node for node, _, _ in sent} | ordered(world).keys()
    assert all(["dn3"] == named for _, named, _ in sent)
    assert all("dn3" not in {e.datanode_id for e in endpoints} for _, _, endpoints in sent)
    assert sent


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
    ("silent_ms", "is_dead"), [(OPTIONS.stale_after_ms, False), (OPTIONS.dead_after_ms, True)]
)
def test_whom_a_command_does_not_ask_is_named_and_whether_anybody_waits_for_it(
    world: ScmWorld, silent_ms: int, *, is_dead: bool
) -> None:
    """A silent holder may contradict those that are asked; one whose node is dead is given up."""
    box = world.made_closed()
    pass_time(world, silent_ms // 1000 + 1, "dn1", "dn2")
    world.beat("dn2", replace(held(world, "dn2", box), finding_count=1))
    pass_time(world, 12, "dn1")

    sent = [command for command, _ in world.beat("dn2").commands]

    [reconcile] = [one for one in sent if one.kind is CommandKind.RECONCILE]
    [holder] = reconcile.holders
    assert ("dn3", is_dead) == (holder.replica.datanode_id, holder.is_dead)


@pytest.mark.parametrize(
    "change",
    [
        {"tree": None},
        {"is_contradictory": True},
    ],
    ids=["its root is not known", "replicas contradict each other"],
)
def test_undecidable_difference_is_not_ordered_reconciled(
    world: ScmWorld, change: dict[str, object]
) -> None:
    """An unknown root says nothing, and a contradiction is for an operator."""
    box = world.made_closed()
    world.beat("dn2", replace(held(world, "dn2", box), **change))  # type: ignore[arg-type]

    pass_time(world, 90, *NODES)

    assert {} == ordered(world)


def test_a_contradiction_keeps_no_other_damage(world: ScmWorld) -> None:
    """The other damage is repaired."""
    box = world.made_closed()
    world.beat("dn2", replace(held(world, "dn2", box), is_contradictory=True, finding_count=1))

    pass_time(world, 12, *NODES)

    why = "control plane: replicas contradict each other; scan findings"
    assert {why} == set(ordered(world).values())


def test_replica_that_lacks_only_the_commit_id_gets_it_and_is_closed(
    world: ScmWorld,
) -> None:
    """The blocks that it lacked were deleted since, so it is not copied from the others, which
    have the same blocks.
    """
    box = world.made_closed()
    behind = replace(held(world, "dn2", box), state=ReplicaState.QUASI_CLOSED, bcsid=0)
    world.beat("dn2", behind)

    pass_time(world, 12, *NODES)
    reconciled = ordered(world)
    world.beat("dn2", replace(behind, bcsid=box.sequence_id))
    [close] = [c for c in world.state.commands.of_node("dn2") if c.kind is CommandKind.CLOSE]

    assert {"control plane: commit id behind"} == set(reconciled.values())
    assert (box.sequence_id, True) == (close.bcsid, close.force)
    assert not [c for c in world.state.commands.values() if c.kind is CommandKind.REPLICATE]


def test_healing_can_be_disabled(tmp_path: Path) -> None:
    """With `heal` off, only operators and plans order a reconcile."""
    with made(tmp_path, OPTIONS.model_copy(update={"heal": False})) as world:
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
    world.control.deletions.delete_keys(
        [key.name for key in world.state.keys.values()], dry_run=False
    )
    for node in ("dn1", "dn2"):
        for command, _named in world.call(node).commands:
            done = tuple((t.container_id, t.transaction_id) for t in command.transactions)
            world.beat(node, outcomes=(replace(outcome(command), acknowledged=done),))
        world.beat(node, replace(held(world, node, box), tree=summary(8, tombstones=5)))

    pass_time(world, 90, "dn1", "dn2")  # the third was told nothing, and stays silent

    assert {} == ordered(world)


def test_repeated_damage_is_reconciled_again(world: ScmWorld) -> None:
    """The same damage after a repair is new, and gets the same time to settle."""
    box = world.made_closed()
    whole = held(world, "dn2", box)
    world.beat("dn2", replace(whole, finding_count=1))
    pass_time(world, 5, *NODES)
    world.beat("dn2", whole)
    pass_time(world, 3, *NODES)
    world.beat("dn2", replace(whole, finding_count=1))
    pass_time(world, 8, *NODES)
    early = ordered(world)

    pass_time(world, 4, *NODES)

    assert {} == early
    assert dict.fromkeys(NODES, "control plane: scan findings") == ordered(world)


def test_replica_without_a_peer_is_reconciled_when_one_returns(tmp_path: Path) -> None:
    """No peer could answer when the reconcile was due. No new report is needed for another
    attempt.
    """
    options = OPTIONS.model_copy(update={"stale_after_ms": 3_000, "dead_after_ms": 900_000})
    with made(tmp_path, options) as world:
        box = world.made_closed()
        world.beat("dn2", replace(held(world, "dn2", box), finding_count=1))
        pass_time(world, 15, "dn2")
        alone = ordered(world)

        pass_time(world, 15, *NODES)

        assert {} == alone
        assert dict.fromkeys(NODES, "control plane: scan findings") == ordered(world)


def reconciled_in_vain(world: ScmWorld, seconds: int, *alive: str) -> list[int]:
    """Let time pass; every reconcile that is sent comes to nothing. Return when any was sent."""
    sent_at = []
    for second in range(seconds):
        pass_time(world, 1)
        for node in alive:
            answer = world.call(node)
            if any(command.kind is CommandKind.RECONCILE for command, _ in answer.commands):
                sent_at.append(second)
            world.execute(node, answer)
    return sorted(set(sent_at))


@pytest.mark.parametrize("fate", ["it returns", "it dies"])
def test_failed_reconcile_is_repeated_when_a_silent_node_returns_or_dies(
    tmp_path: Path, fate: str
) -> None:
    """Two replicas are damaged, and the third, which could help or contradict, is silent. The
    node returns with the same replica, or dies, and no datanode has anything new to report.
    """
    dead_after_ms = 600_000 if fate == "it dies" else 3_600_000
    with made(tmp_path, OPTIONS.model_copy(update={"dead_after_ms": dead_after_ms})) as world:
        box = world.made_closed()
        pass_time(world, 20, "dn1", "dn2")
        for node in ("dn1", "dn2"):
            world.beat(node, replace(held(world, node, box), finding_count=1))
        in_vain = reconciled_in_vain(world, 570, "dn1", "dn2")
        if fate == "it returns":
            world.call("dn3")

        later = reconciled_in_vain(world, 60, "dn1", "dn2")

        assert max(in_vain) < 300, "it was given up long before"
        assert later


def test_read_only_replica_is_reconciled_after_its_upgrade(world: ScmWorld) -> None:
    """Datanodes of another layout are upgraded and report the same as before."""
    box = world.made_closed()
    world.join(*NODES, boot_id=2, layout_version=LAYOUT_VERSION + 1)
    for node in NODES:
        finding_count = int(node == "dn2")
        told = replace(held(world, node, box), finding_count=finding_count)
        world.beat(node, told, full=True, boot_id=2)
    pass_time(world, 12)
    before = ordered(world)
    world.join(*NODES, boot_id=3)
    for node in NODES:
        world.beat(node, held(world, node, box), full=True, boot_id=3)

    pass_time(world, 12)

    assert {} == before
    assert dict.fromkeys(NODES, "control plane: scan findings") == ordered(world)


def test_a_full_queue_is_no_reason_to_forget_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container is retried every ten seconds, until there is room."""
    options = OPTIONS.model_copy(update={"stale_after_ms": 600_000, "dead_after_ms": 900_000})
    with made(tmp_path, options) as world:
        boxes = [world.made_closed() for _ in range(2)]
        for box in boxes:
            world.beat("dn2", replace(held(world, "dn2", box), finding_count=1))
        monkeypatch.setattr(command_limits, "QUEUE_MAX", 1)
        pass_time(world, 12)
        first = containers_ordered(world)
        monkeypatch.setattr(command_limits, "QUEUE_MAX", 10)
        pass_time(world, 7)
        early = containers_ordered(world)

        pass_time(world, 4)

        assert 1 == len(first)
        assert first == early
        assert {box.container_id for box in boxes} == containers_ordered(world)


def test_a_turn_orders_only_so_many(world: ScmWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of orders per turn is bounded, so that the lock is not held for long, even
    after the loss of a disk.
    """
    monkeypatch.setattr(auto_reconcile, "ORDERS_PER_TURN", 2)
    boxes = [world.made_closed() for _ in range(5)]
    for box in boxes:
        world.beat("dn2", replace(held(world, "dn2", box), finding_count=1))
    counts = []
    for _ in range(14):
        pass_time(world, 1)
        counts.append(len(containers_ordered(world)))

    assert [0, 2, 4, 5] == sorted(set(counts))


def test_a_turn_orders_in_portions(world: ScmWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of them others have the lock."""
    monkeypatch.setattr(auto_reconcile, "ORDERS_AT_ONCE", 2)
    boxes = [world.made_closed() for _ in range(5)]
    for box in boxes:
        world.beat("dn2", replace(held(world, "dn2", box), finding_count=1))
    seen = [0]
    for _ in range(14):
        world.clock.advance_s(1)
        world.keep_alive(*NODES)
        world.control.tick(lambda _took_s: seen.append(len(containers_ordered(world))))

    assert 5 == seen[-1]
    assert {0, 1, 2} == {after - before for before, after in pairwise(seen)}


def test_ineffective_reconcile_is_ordered_three_times_at_most(world: ScmWorld) -> None:
    """Each attempt comes after a longer pause. Then the replicas must change or an operator must
    ask.
    """
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


@pytest.mark.parametrize("ahead_s", [0, 86_400], ids=["right", "ahead"])
def test_a_container_that_stays_quasi_closed_is_copied_whatever_the_clock_said(
    tmp_path: Path, ahead_s: int
) -> None:
    """The container was created while the clock was a day ahead, and the copy does not wait for
    that day.
    """
    with ScmWorld(tmp_path, ScmOptions()).running() as world:
        nodes = ("dn1", "dn2", "dn3", "dn4")
        world.join(*nodes)
        since_ms = world.clock.now_ms() + 1_000 * ahead_s
        made = replace(
            container(ContainerState.QUASI_CLOSED, sequence_id=9), state_since_ms=since_ms
        )
        with world.state.change() as change:
            change.put(world.state.containers, made)
            change.next_id("next_container_id")
        world.beat("dn1", replica("dn1", ReplicaState.QUASI_CLOSED), full=True)
        for node in nodes[1:]:
            world.beat(node, full=True)
        ordered = []
        for _ in range(400):
            world.clock.advance_s(1)
            world.control.tick()
            for node in nodes:
                commands = world.call(node).commands
                ordered += [c.kind for c, _named in commands if c.kind is CommandKind.REPLICATE]

        assert ordered
