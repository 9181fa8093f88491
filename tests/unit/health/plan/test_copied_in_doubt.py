"""What is copied although something speaks against it: only where nothing better is left."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scm.state.entities import CommandKind, NodeHealthState
from scm.state.options import ScmOptions
from tests.support.control.judged_case import copied, doubts, read_from, sources
from tests.support.control.judged_container import JudgedContainer
from tests.support.control.replica_words import case, shards
from tests.support.control.scm_world import ScmWorld, container, pass_time, replica, summary

DAMAGED: dict[str, Any] = {"finding_count": 1}
OTHER: dict[str, Any] = {"tree": summary(9)}
THIRD: dict[str, Any] = {"tree": summary(8)}
UNREAD: dict[str, Any] = {"tree": None}


def among(given: JudgedContainer, **changes: dict[str, Any]) -> JudgedContainer:
    """Return the case with these replicas changed, by datanode."""
    placed = (
        replace(p, replica=replace(p.replica, **changes.get(p.datanode_id, {})))
        for p in given.placed
    )
    return replace(given, placed=tuple(placed))


class TestCopies:
    """Sources of a copy."""

    @pytest.mark.parametrize(
        ("words", "changes", "expected", "told"),
        [
            ("C C C", {"dn1": DAMAGED}, ["dn2", "dn3"], {"dn1": "scan findings"}),
            ("C C C", {"dn3": OTHER}, ["dn1", "dn2"], {"dn3": "outvoted"}),
            ("C C", {"dn1": DAMAGED, "dn2": DAMAGED}, ["dn1", "dn2"], {"dn1", "dn2"}),
            ("C C", {"dn2": OTHER}, ["dn1", "dn2"], {"dn1": "roots differ", "dn2": "roots differ"}),
            ("C C C", {"dn2": OTHER, "dn3": THIRD}, ["dn1", "dn2", "dn3"], {"dn1", "dn2", "dn3"}),
            ("C C C", {"dn2": OTHER, "dn3": UNREAD}, ["dn3"], {"dn1", "dn2"}),
            ("C", {"dn1": DAMAGED}, ["dn1"], {"dn1": "scan findings"}),
            ("C Q@5", {"dn1": DAMAGED}, ["dn2"], {"dn1"}),
            ("C Q@4", {"dn1": DAMAGED}, ["dn1"], {"dn1"}),
            ("C@5 C@4", {"dn1": DAMAGED}, ["dn1"], {"dn1"}),  # all commits first
            ("C C? C?", {"dn1": OTHER}, ["dn1"], set()),  # who is silent does not vote
            ("C U U", {"dn1": OTHER}, ["dn1"], {"dn2", "dn3"}),  # nor who is known to be damaged
            ("U U", {}, ["dn1", "dn2"], {"dn1": "UNHEALTHY", "dn2": "UNHEALTHY"}),
        ],
    )
    def test_doubtful_replica_is_copied_only_without_a_better_one(
        self,
        words: str,
        changes: dict[str, dict[str, Any]],
        expected: list[str],
        told: dict[str, str] | set[str],
    ) -> None:
        """The doubtful replica has findings, is outvoted, or has one of several roots that
        cannot be ranked.
        """
        given = among(case(words), **changes)

        found = doubts(given)
        silent = {p.datanode_id for p in given.placed if p.health.value != "HEALTHY"}
        found = {node: why for node, why in found.items() if node not in silent}
        assert expected == [p.datanode_id for p in sources(given)]
        assert told == (found if isinstance(told, dict) and len(told) == len(found) else set(found))


def lost(*damaged: str, words: str = "C#1 C#2 C#3 C#4") -> JudgedContainer:
    """Return an RS(3,2) container that lacks shards, with these that have findings."""
    return among(shards(words), **dict.fromkeys(damaged, DAMAGED))


class TestShards:
    """Sources of a reconstruction."""

    @pytest.mark.parametrize(
        ("given", "silent", "expected"),
        [
            (lost(), (), [1, 2, 3, 4]),
            (lost("dn2"), (), [1, 3, 4]),
            (lost("dn2"), ("dn1",), [3, 4, 2]),
            (lost("dn1", "dn2"), (), [3, 4, 1, 2]),
            (lost("dn2"), ("dn1", "dn3"), []),
            (lost("dn1", words="C#1 C#1 C#2 C#3"), (), [1, 2, 3]),
        ],
    )
    def test_doubtful_shards_are_read_only_if_needed_and_last(
        self, given: JudgedContainer, silent: tuple[str, ...], expected: list[int]
    ) -> None:
        """The copy reads as many shards as there are data shards."""
        placed = (
            replace(p, health=NodeHealthState.STALE) if p.datanode_id in silent else p
            for p in given.placed
        )

        found = read_from(replace(given, placed=tuple(placed)))

        assert expected == [index for index, _node in found]

    def test_better_shard_of_one_index_is_read_and_copied(self) -> None:
        """The order of the two does not matter."""
        given = lost("dn1", words="C#1/d C#1/d C#2 C#3 C#4 C#5")

        lacking = lost("dn1", words="C#1/d C#1/d C#2 C#3 C#4")

        assert (1, "dn2") in read_from(lacking)
        assert ["dn2"] == [p.datanode_id for p in copied(given)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Two whole replicas of container 1, and a node for the third."""
    options = ScmOptions(stale_after_ms=1_000_000, dead_after_ms=2_000_000)
    with ScmWorld(tmp_path, options).running() as made:
        made.join("dn1", "dn2", "dn3")
        with made.state.change() as change:
            change.put(made.state.containers, container())
        for node in ("dn1", "dn2"):
            made.beat(node, replica(node), full=True)
        made.beat("dn3", full=True)
        yield made


def ordered(world: ScmWorld) -> dict[str, str]:
    """Return the copies that are ordered: source and why."""
    commands = world.state.commands.values()
    return {c.datanode_id: c.why for c in commands if c.kind is CommandKind.REPLICATE}


class TestOrders:
    """The control plane's own choice, and its last look before a command leaves."""

    def test_a_source_that_came_into_doubt_is_not_sent(self, world: ScmWorld) -> None:
        """The command is dropped when its turn has come, and the better one is asked."""
        world.control.tick()
        [first] = ordered(world)
        [second] = {"dn1", "dn2"} - {first}

        answer = world.beat(first, replica(first, finding_count=1))
        pass_time(world, 120, first, second, "dn3")

        assert [] == [c for c, _ in answer.commands if c.kind is CommandKind.REPLICATE]
        assert {second: "too few replicas"} == ordered(world)

    def test_an_order_says_what_speaks_against_its_source(self, world: ScmWorld) -> None:
        """No better source is left."""
        for node in ("dn1", "dn2"):
            world.beat(node, replica(node, finding_count=1))
        world.control.tick()

        [(source, why)] = ordered(world).items()
        assert f"too few replicas; no better source than {source}: scan findings" == why
