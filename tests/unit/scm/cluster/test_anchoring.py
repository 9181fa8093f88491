"""Heads of verification logs at the control plane: one a day, never another, kept over restarts."""

from dataclasses import replace
from pathlib import Path

import pytest

from scm.api.call_values import Heartbeat
from scm.cluster.log_anchors import INTERVAL_MS
from scm.state.history import anchors as module
from scm.state.history.anchors import Anchor, AnchorTable, VolumeAnchors
from tests.support.control.scm_world import ScmWorld, volume
from tests.support.heard import logged

DAY_S = INTERVAL_MS / 1000


@pytest.fixture
def world(tmp_path: Path) -> ScmWorld:
    """Return a cluster of two nodes."""
    made = ScmWorld(tmp_path)
    made.join("a", "b")
    return made


def tell(world: ScmWorld, count: int, checksum: str = "", node: str = "a") -> None:
    """Let a node tell the head of its log."""
    told = replace(volume(), log_count=count, log_checksum=checksum or f"{count:064x}")
    world.control.datanodes.heartbeat(Heartbeat(node, 1, (told,), (), (), (), None, 0))


def counts(world: ScmWorld, node: str = "a") -> list[int]:
    """Return of how many entries the anchors of a node are."""
    return [one.count for log in world.control.anchoring.anchors(node) for one in log.anchors]


def test_anchor_is_kept_once_a_day_for_each_log(world: ScmWorld) -> None:
    """The first is kept at once. A log without new entries gets no second one."""
    tell(world, 0)
    tell(world, 3)
    tell(world, 5)
    world.clock.advance_s(DAY_S - 1)
    tell(world, 6)
    assert [3] == counts(world)

    world.clock.advance_s(1)
    tell(world, 7)
    world.clock.advance_s(DAY_S)
    tell(world, 7)

    assert [3, 7] == counts(world)


def test_anchors_survive_a_restart(world: ScmWorld) -> None:
    """Their checksums are kept, also if the state starts cold."""
    tell(world, 3, "ab" * 32)
    tell(world, 9, node="b")

    world.restart(is_cold=True)

    [a, b] = world.control.anchoring.anchors()
    assert ("a", "volume-1", "ab" * 32) == (a.datanode_id, a.volume_id, a.anchors[0].checksum)
    assert [9] == [one.count for one in b.anchors]


def test_a_log_that_goes_back_is_told_and_changes_nothing(world: ScmWorld) -> None:
    """
    Shorter, or another one of the same length: once for each, however often it calls.
    """
    tell(world, 5)
    world.clock.advance_s(2 * DAY_S)

    with logged() as said:
        for _ in range(3):
            tell(world, 4)
            tell(world, 5, "f" * 64)

    events = [one for one in said if one["event"] == "verification_log_changed"]
    assert [(4, 5), (5, 5)] == [(one["count"], one["anchored_count"]) for one in events]
    assert [5] == counts(world)


def test_anchor_listing_has_the_newest_of_all_logs_or_all_of_one(world: ScmWorld) -> None:
    """A volume without anchors gives an empty list."""
    for count in (1, 2):
        tell(world, count)
        world.clock.advance_s(DAY_S)

    assert [2] == [one.count for log in world.control.anchoring.anchors() for one in log.anchors]
    assert [1, 2] == counts(world)
    assert [] == world.control.anchoring.anchors("a", "volume-2")


def test_a_volume_has_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The oldest goes; each row is read back as it was.
    """
    monkeypatch.setattr(module, "ANCHORS_MAX", 2)
    log = VolumeAnchors("a", "v", ())
    for count in (1, 2, 3):
        log = log.followed_by(Anchor(count, count, "0" * 64))

    assert [2, 3] == [one.count for one in log.anchors]
    table = AnchorTable()
    assert log == table.value(table.row(log))
