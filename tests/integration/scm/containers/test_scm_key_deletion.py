"""Keys that are deleted: which of a name, and how many in one turn."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from scm.containers import block_deletion
from suture.errors import Code, UnavailableError
from tests.support.control.scm_world import ScmWorld

NODES = ("dn1", "dn2", "dn3")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Three nodes that joined."""
    with ScmWorld(tmp_path).running() as made:
        made.join(*NODES)
        yield made


def test_another_key_of_the_name_stays(world: ScmWorld) -> None:
    """The dry run identifies the key, also after a restart and for an empty file."""
    world.write("a", "k", 10)
    world.write("a", "empty")
    shown = world.control.deletions.delete_keys(["k", "empty"], dry_run=True)
    worlds = [one.world for one in shown]
    world.restart()
    again = world.control.deletions.delete_keys(["k", "empty"], dry_run=True)
    world.control.deletions.delete_keys(["k", "empty"], dry_run=False)
    world.clock.advance_s(1)
    world.join(*NODES, boot_id=2)
    world.control.safe_mode.leave()
    world.write("b", "k", 10)
    world.write("b", "empty")

    deletions = world.control.deletions.delete_keys(["k", "empty"], worlds, dry_run=False)

    assert worlds == [one.world for one in again]
    assert [Code.STALE_PLAN] * 2 == [one.code for one in deletions]
    assert ["empty", "k"] == sorted(key.name for key in world.state.keys.values())


def test_many_keys_go_in_turns_and_no_more_of_them_than_are_wanted(
    world: ScmWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Ten thousand in one turn would keep every heartbeat waiting, and a caller that has gone may have
    asked again already.
    """
    monkeypatch.setattr(block_deletion, "DELETES_PER_TURN", 2)
    names = [f"k{number}" for number in range(5)]
    for name in names:
        world.write("a", name, 10)
    looks: list[int] = []

    def is_wanted() -> bool:
        looks.append(len(world.state.keys))
        return len(looks) < 3

    with pytest.raises(UnavailableError, match="the caller disconnected: 4 of 5 keys") as caught:
        world.control.deletions.delete_keys(names, dry_run=False, is_wanted=is_wanted)

    assert Code.CANCELLED is caught.value.code
    assert [5, 3, 1] == looks
    assert ["k4"] == [key.name for key in world.state.keys.values()]
