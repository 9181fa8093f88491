"""Closed containers whose last commit was on one datanode only, which is gone."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scm.state.entities import CommandKind, ContainerState
from tests.integration.scm.containers.test_scm_closures import (
    NODES,
    OPTIONS,
    STEP_S,
    WAIT_S,
    Audit,
    C,
    now,
    run,
    spare,
    write,
)
from tests.support.control.scm_world import ScmWorld, confirm, replica


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Four nodes, of which three hold a container."""
    with ScmWorld(tmp_path, OPTIONS, audit=Audit()).running() as made:
        made.join(*NODES)
        yield made


def close_behind_one(world: ScmWorld) -> tuple[str, ...]:
    """Let all close, the first with a commit that the others never got."""
    nodes = write(world, acknowledged=5, seen=6)
    for node in nodes:
        world.beat(node, replica(node, C, bcsid=6 if node == nodes[0] else 5), full=True)
    confirm(world, *NODES)
    assert (ContainerState.CLOSED, 6) == (now(world).state, now(world).sequence_id)
    return nodes


def test_a_closed_container_whose_last_commit_died_loses_its_surplus(world: ScmWorld) -> None:
    """
    All others were closed before that commit, and are equal. With it given up they are whole;
    else four would stay where three are wanted, and none could be moved, for ever.
    """
    first, *others = close_behind_one(world)
    world.join("dn5")
    copies = (spare(first, *others), "dn5")
    for node in copies:
        held = replace(replica(node, C, bcsid=5), origin_datanode_id=others[0])
        world.beat(node, held, full=True)
    deleted = set[str]()

    for _ in range((60 + WAIT_S) // STEP_S):  # the first one falls silent, and dies
        run(world, STEP_S, *others, *copies)
        orders = world.state.commands.values()
        deleted |= {c.datanode_id for c in orders if c.kind is CommandKind.DELETE}

    assert 5 == now(world).sequence_id
    assert len(deleted) == 1
    assert isinstance(world.audit, Audit)
    (facts,) = [facts for action, _, facts in world.audit.lines if action == "close container"]
    assert (5, 6, []) == (facts["bcsid"], facts["given_up_to"], facts["keys"])
    assert f"{first} is CLOSED at commit 6" == facts["kept"]


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_closed_container_is_not_closed_short_where_commits_may_be_unknown(
    world: ScmWorld, monkeypatch: pytest.MonkeyPatch, *, is_restored: bool
) -> None:
    """After a restore, keys that are missing in the backup may have the last commit."""
    monkeypatch.setattr(world.state, "has_all_commits_of", lambda _id: not is_restored)
    first, *others = close_behind_one(world)

    run(world, 60 + WAIT_S, *others, spare(first, *others))

    assert (6 if is_restored else 5) == now(world).sequence_id
