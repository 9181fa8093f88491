"""Moves between volumes that were cut off with both replicas in place, and what meets them then."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.host.volume_evacuation import RETRY_S
from agent.store.operations import deleting
from agent.store.volume_services import RemainingReplica
from agent.store.volumes.service_mode import VolumeMode
from agent.store.volumes.volume import Volume
from merkle.replica import ContainerId
from suture.errors import Code, UnavailableError, VolumeFailed
from tests.support.storage.two_volumes import Host, Killed, filled

COUNT = 6


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Two volumes with containers, of which a retires."""
    with filled(tmp_path, COUNT) as made:
        made.store.services.change(made.id_of("a"), VolumeMode.RETIRING)
        yield made


def cut_off(host: Host, monkeypatch: pytest.MonkeyPatch, container_id: ContainerId) -> None:
    """Move one replica, be killed before the old one goes, and start again."""
    [left] = [one for one in left_on_a(host) if one.container_id == container_id]

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as deadly:
        deadly.setattr(host.store.services, "drop_moved", killed)
        with pytest.raises(Killed):
            host.moves._deal_with(host.id_of("a"), left)
    host.restart()
    assert container_id in host.on("b")


def left_on_a(host: Host) -> list[RemainingReplica]:
    """Return what is on the volume that retires."""
    return host.store.services.left_on(host.id_of("a"))


class TestDelete:
    def test_a_delete_waits_until_one_of_the_two_is_left(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        Only the copy would go, and the next start would serve the old one: deleted data is back.
        The old one may be the better of the two, so it does not go unseen either.
        """
        number = ContainerId(host.on("a")[-1])
        cut_off(host, monkeypatch, number)

        with pytest.raises(UnavailableError, match="is on both") as caught:
            host.store.delete_container(number, force=True)

        assert Code.BUSY is caught.value.code
        assert number in host.on("b")
        host.moves.step()
        host.store.delete_container(number, force=True)
        host.restart()
        assert number not in host.store.replica_ids()
        assert () == host.store.unloadable()

    def test_interrupted_move_is_finished_before_new_moves_begin(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In id order, hours of moves could come before it, and its container could not be
        deleted for as long.
        """
        first, *_, last = map(ContainerId, host.on("a"))
        cut_off(host, monkeypatch, last)

        host.moves.step()

        left = {one.container_id for one in left_on_a(host)}
        assert (True, False) == (first in left, last in left)


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_removal_that_fails_takes_no_copy_along(
    host: Host, monkeypatch: pytest.MonkeyPatch, *, is_restarted: bool
) -> None:
    """
    The old disk fails while the old replica is being removed, as disks that retire do: what is left
    of that one is none any more, and the copy is all there is.
    """
    old = host.store.volume_set.by_id(host.id_of("a"))
    finish = deleting.finish_delete

    def failing(volume: Volume, container_id: ContainerId) -> str:
        if volume is old:
            raise VolumeFailed(Code.IO_EXCEPTION, "the disk is gone")
        return finish(volume, container_id)

    with monkeypatch.context() as broken:
        broken.setattr(deleting, "finish_delete", failing)
        host.work()

    host.assert_whole(COUNT)
    if is_restarted:
        host.restart()
        host.assert_whole(COUNT)
    host.clock.advance_s(RETRY_S + 1)
    host.work()
    assert VolumeMode.RETIRED is host.store.services.of(host.id_of("a")).mode
    host.restart()
    host.assert_whole(COUNT)
