"""After a restore: one id that a datanode names does not keep a cluster in safe mode."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from merkle.replica import ID_MAX
from scm.state.state_metadata import CONTAINER_GAP
from tests.support.control.restored import (
    NODES,
    codes,
    looked,
    put,
    recover,
    report,
    restored_world,
)
from tests.support.control.scm_world import ScmWorld, confirm, pass_time, replica


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """A restored control plane."""
    with restored_world(tmp_path / "data") as made:
        yield made


class TestGone:
    """A container that was named and that nobody has any more."""

    def test_container_lost_before_the_recovery_is_not_queried(self, world: ScmWorld) -> None:
        """A disk failed between two reports. No datanode can answer for its containers."""
        report(world, 1, 2, 9)
        assert 9 in world.control.queries.to_recover().container_ids

        world.join(*NODES, boot_id=2)
        for node in NODES:
            here = [replica(node, container_id=number) for number in (1, 2)]
            world.beat(node, *here, full=True, boot_id=2)

        assert (2,) == world.control.queries.to_recover().container_ids

    def test_deleted_open_container_is_not_queried_again(self, world: ScmWorld) -> None:
        """The container may be emptied and deleted at any time after the recovery, which can be
        run again.
        """
        report(world, 1, 2)
        recover(world, is_end=True)
        assert 2 in world.control.queries.to_recover().container_ids

        report(world, 1)
        with world.state.change() as change:
            change.remove(world.state.containers, 2)

        assert () == world.control.queries.to_recover().container_ids


@pytest.mark.parametrize("far_off", [300_000_000, 10**12, ID_MAX - 1, ID_MAX])
class TestFarOff:
    """A container that this control plane cannot have made since the backup: a stray directory,
    or what any client asked a datanode to create."""

    def test_container_with_a_far_off_id_is_not_adopted(
        self, far_off: int, world: ScmWorld
    ) -> None:
        """A table of all ids up to it would not fit into memory. The container stays as it is,
        and is shown.
        """
        report(world, 1, 2, 9, far_off)

        made = recover(world, put("far", far_off, 90), containers=(looked(9), looked(far_off)))

        assert ([9], [("far", "CONTAINER_NOT_FOUND")]) == (made.adopted, codes(made))
        views, _ = world.control.views.containers(0, 100)
        assert [1, 2, 9, far_off] == [view.container_id for view in views]

    def test_ids_do_not_go_on_behind_it(self, far_off: int, world: ScmWorld) -> None:
        """Ids are never taken back, so the far id must not consume the range."""
        report(world, 1, 2, 9, far_off)
        recover(world, containers=(looked(9),))

        recover(world, is_end=True)

        pass_time(world, 30, *NODES)
        assert world.control.safe_mode.status().is_open
        (promised,) = world.control.clients.allocate("c", [10])
        assert promised.container_id == 9 + 1 + CONTAINER_GAP


def test_a_block_id_at_the_end_leaves_numbers_for_new_blocks(world: ScmWorld) -> None:
    """The writer of the block chose its id. Ids are never taken back, and without one nothing
    can be stored.
    """
    report(world, 1, 2)

    recover(world, is_end=True, last_local_id=ID_MAX - 1)

    confirm(world, *NODES)
    for name in "abc":
        world.control.clients.allocate(name, [10])


def test_containers_of_a_busy_year_are_adopted(world: ScmWorld) -> None:
    """The age of the backup does not matter. Ids beyond the reach of one recovery are within
    that of the next.
    """
    made_since = 3_000_000
    report(world, 1, 2, made_since, 2 * made_since)

    made = recover(world, containers=(looked(made_since), looked(2 * made_since)))
    assert [made_since] == made.adopted
    recover(world, is_end=True)

    again = recover(world, containers=(looked(2 * made_since),))
    assert [2 * made_since] == again.adopted
