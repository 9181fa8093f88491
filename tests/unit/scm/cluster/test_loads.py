"""Throttles: the vectors of Ozone's replication manager, and its numbers."""

from dataclasses import replace

import pytest

from scm.cluster.commands.loads import (
    DELETE_LIMIT,
    RECONSTRUCT_WEIGHT,
    REPLICATION_LIMIT,
    in_flight_limit,
    least_loaded,
    load,
    replication_limit,
    volume_limit,
)
from scm.state.entities import CommandKind, CommandPriority, OpState, PendingCommand
from tests.support.control.scm_world import pending


def test_the_numbers_are_ozones() -> None:
    """20 replications, 40 out of service, 40 deletes; a reconstruction weighs 3."""
    assert (20, 40) == (REPLICATION_LIMIT, DELETE_LIMIT)
    assert 20 == replication_limit(OpState.IN_SERVICE)
    for state in set(OpState) - {OpState.IN_SERVICE}:
        assert 40 == replication_limit(state)
    assert 3 == RECONSTRUCT_WEIGHT


@pytest.mark.parametrize(
    ("volume_count", "expected"),
    [
        (0, 20),  # it has not told of its volumes yet
        (1, 20),
        (10, 20),
        (11, 22),
        (24, 48),
        (64, 128),
        (65, 128),  # more threads than that no agent has
    ],
)
def test_the_limit_grows_with_many_volumes(volume_count: int, expected: int) -> None:
    """The limit is two for each volume, like the threads of the datanode, and never less than
    with a few volumes.
    """
    assert expected == volume_limit(REPLICATION_LIMIT, volume_count)
    assert 60 == max(60, volume_limit(60, min(volume_count, 30)))


def choose(loads: dict[str, int], states: dict[str, OpState] | None = None) -> str | None:
    """Choose among nodes with these loads, in service unless told otherwise."""
    return least_loaded(
        list(loads),
        loads.__getitem__,
        lambda node: replication_limit((states or {}).get(node, OpState.IN_SERVICE)),
    )


def test_w41_seventeen_replicates_and_a_reconstruct_are_too_many() -> None:
    """No source may get more. With one less, one may."""
    busy = 17 + RECONSTRUCT_WEIGHT

    assert choose({"a": busy, "b": busy, "c": busy}) is None
    assert "b" == choose({"a": busy, "b": busy - 1, "c": busy})


def test_w43_the_idle_source_is_chosen() -> None:
    """Sources at 10, 5 and 0."""
    assert "c" == choose({"a": 10, "b": 5, "c": 0})


def test_w44_a_node_entering_maintenance_may_have_more() -> None:
    """In service at 21 and 21; the other at 22 of 40."""
    states = {"c": OpState.ENTERING_MAINTENANCE}

    assert "c" == choose({"a": 21, "b": 21, "c": 22}, states)


@pytest.mark.parametrize(("percent", "expected"), [(0, 0), (100, 200), (75, 150)])
def test_w47_the_cluster_has_a_limit_of_its_own(percent: int, expected: int) -> None:
    """Ten healthy nodes; 0 means that there is none."""
    assert expected == in_flight_limit(10 * REPLICATION_LIMIT, percent)


def test_the_limit_of_a_small_cluster_is_never_nought() -> None:
    """A share of a copy is a copy: else nothing would ever be mended."""
    assert (1, 7) == (in_flight_limit(20, 1), in_flight_limit(20, 33))


def command(
    command_id: int, *, sent_at_s: float | None = None, low: bool = False
) -> PendingCommand:
    """Build a replicate command."""
    made = pending(command_id, CommandKind.REPLICATE, sent_at_s=sent_at_s)
    return replace(made, priority=CommandPriority.LOW) if low else made


@pytest.mark.parametrize(
    ("commands", "reported", "expected"),
    [
        ([], 4, 4),
        ([command(1)], 4, 5),
        ([command(1, sent_at_s=5.0)], 4, 5),  # sent with the answer to the report of 4
        ([command(1, sent_at_s=4.0)], 4, 4),  # before it: the report knows
        ([command(i, sent_at_s=4.0) for i in range(6)], 4, 6),  # the report is behind
        ([command(1, low=True)], 4, 4),
        ([command(1, sent_at_s=4.0, low=True)], 4, 3),  # the report counts it, we do not
        ([command(1, sent_at_s=4.0, low=True)], 0, 0),
        ([command(i, sent_at_s=4.0, low=True) for i in range(2)], 1, 0),
        ([command(1, sent_at_s=5.0, low=True), command(2, sent_at_s=5.0)], 4, 5),
        ([replace(command(1), kind=CommandKind.DELETE)], 4, 4),
        ([replace(command(1, sent_at_s=5.0), kind=CommandKind.DELETE)], 4, 4),
        ([replace(command(1, sent_at_s=5.0), is_answered=True)], 4, 4),
        ([replace(command(1), is_answered=True)], 4, 4),
        ([command(1), command(2), command(3, sent_at_s=6.0)], 1, 4),
        ([command(1, sent_at_s=5.0, low=True)], 4, 4),
    ],
)
def test_load_is_what_was_reported_sent_since_and_waits(
    commands: list[PendingCommand], reported: int, expected: int
) -> None:
    """The last heartbeat was at 5.0; LOW commands wait at the datanode and do not count."""
    assert expected == load(
        CommandKind.REPLICATE, commands, reported_count=reported, heard_at_s=5.0
    )
