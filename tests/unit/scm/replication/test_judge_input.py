"""What the judge sees of pending commands: a word, a datanode and an index for each replica."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from health.words import OPS
from scm.replication.health.health_batches import op_rows
from scm.state.entities import CommandKind, PendingCommand
from tests.support.control.scm_world import ScmWorld, container, pending, replica

NODES = ("dn1", "dn2", "dn3", "dn4", "dn5", "dn6")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """An erasure-coded container with shards 3 and 4 on dn1 and dn2."""
    with ScmWorld(tmp_path).running() as made:
        made.join(*NODES)
        coded = replace(container(), scheme="rs-3-2-1024k", replication_factor=5)
        with made.state.change() as change:
            change.put(made.state.containers, coded)
        made.beat("dn1", replica("dn1", replica_index=3))
        made.beat("dn2", replica("dn2", replica_index=4))
        yield made


def command(kind: CommandKind, node: str = "dn1") -> PendingCommand:
    """Build a command about container 1."""
    return pending(1, kind, container_id=1, node=node)


SHARDS = ((1, "dn5"), (2, "dn6"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (command(CommandKind.DELETE), [("DELETE", "dn1", 3)]),
        (command(CommandKind.RECONCILE, "dn2"), [("RECONCILE", "dn2", 4)]),
        (command(CommandKind.CLOSE, "dn3"), [("CLOSE", "dn3", 0)]),
        (replace(command(CommandKind.REPLICATE), target_id="dn4"), [("ADD", "dn4", 3)]),
        (
            replace(command(CommandKind.RECONSTRUCT), shards=SHARDS),
            [("ADD", "dn5", 1), ("ADD", "dn6", 2)],
        ),
        (command(CommandKind.DELETE_BLOCKS), []),
        (command(CommandKind.REREGISTER), []),
    ],
    ids=lambda value: value.kind if isinstance(value, PendingCommand) else "",
)
def test_pending_replicas_have_their_shard_index(
    world: ScmWorld, given: PendingCommand, expected: list[tuple[str, str, int]]
) -> None:
    """A copied or deleted shard keeps its index, and rebuilt shards are named. Commands about no
    replica are not passed to the judge.
    """
    assert expected == list(op_rows(given, world.state))


def test_the_judge_gets_them_as_columns(world: ScmWorld) -> None:
    """The columns are those of the judged container, each with its datanode."""
    copy = replace(command(CommandKind.REPLICATE), target_id="dn4")
    with world.state.change() as change:
        change.put(world.state.commands, copy)
        change.put(world.state.commands, replace(copy, command_id=2, container_id=2))

    batch = world.control.batches.of([1])

    assert [OPS.index("ADD")] == batch.ops.kind.tolist()
    assert [3] == batch.ops.index.tolist()
    assert ["dn4"] == [batch.nodes.names[number] for number in batch.ops.node.tolist()]


def test_judge_of_no_containers_gives_an_empty_result(world: ScmWorld) -> None:
    """A caller may filter out all containers. An error there would end the control plane."""
    judge = world.control.judge

    assert {} == judge.healthy([])
    assert 0 == judge.diagnose([]).view.rows.count
    assert {} == dict(judge.summarize_health([])[1].under)
