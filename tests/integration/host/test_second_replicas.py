"""Two volumes of one host with the same container, and no retirement that would end it."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agent.host.volume_evacuation import RETRY_S
from agent.store import volume_services
from agent.store.volume_services import RemainingReplica
from agent.store.volumes.service_mode import VolumeMode
from merkle.replica import ID_MAX, Bcsid, BlockId, ContainerId, ReplicaState
from suture.errors import Code, RefusedError, SutureError, UnavailableError, VolumeFailed
from tests.support.storage.deleting import remove_blocks
from tests.support.storage.two_volumes import BLOCKS, Host, Killed, content, filled

COUNT = 4
ONE = BlockId(1)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Two volumes with containers."""
    with filled(tmp_path, COUNT) as made:
        yield made


def cut_off(host: Host, monkeypatch: pytest.MonkeyPatch) -> ContainerId:
    """Retire a, be killed when the first copy is on b and the old one on a, and start again."""
    host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as deadly:
        deadly.setattr(host.store.services, "drop_moved", killed)
        with pytest.raises(Killed):
            host.work()
    host.restart()
    [number] = [left for left in host.store.services.left_on(host.id_of("a")) if not left.is_served]
    return number.container_id


def directories(host: Host, container_id: ContainerId) -> list[str]:
    """Return the volumes with files of a container."""
    return [n for n in ("a", "b") if list(host.at(n).glob(f"hdds/*/current/*/{container_id}"))]


def returned_disk(host: Host, container_id: ContainerId, *, count: int = BLOCKS) -> None:
    """Have a's disk away, the container made anew on b by its writer, and the disk back."""
    host.store.close()
    host.at("a").rename(host.path / "away")
    host.open("a", "b")
    host.write(container_id, count=count)
    assert container_id in host.on("b")
    host.at("a").rmdir()
    (host.path / "away").rename(host.path / "a")
    host.store.services.add_volume(host.path / "a")


class TestCancelled:
    @pytest.mark.parametrize("is_restarted", [False, True])
    @pytest.mark.parametrize("mode", [VolumeMode.IN_SERVICE, VolumeMode.READ_ONLY])
    def test_deleted_container_does_not_return_after_a_cancelled_move(
        self, host: Host, monkeypatch: pytest.MonkeyPatch, mode: VolumeMode, *, is_restarted: bool
    ) -> None:
        """If only the served replica were deleted, the next start would serve the other one. The
        delete is BUSY until the worker has ended the move, which no retirement does any more.
        """
        number = cut_off(host, monkeypatch)
        host.moves.set_mode(host.id_of("a"), mode)
        if is_restarted:
            host.restart()

        with pytest.raises(UnavailableError, match="is on both") as caught:
            host.store.delete_container(number, force=True)

        assert Code.BUSY is caught.value.code
        host.assert_whole(COUNT)
        host.work()
        host.store.delete_container(number, force=True)
        host.restart()
        assert number not in host.store.replica_ids()
        assert [] == directories(host, number)

    @pytest.mark.parametrize("is_restarted", [False, True])
    def test_cancelled_move_removes_one_of_the_two_replicas(
        self, host: Host, monkeypatch: pytest.MonkeyPatch, *, is_restarted: bool
    ) -> None:
        """Otherwise the second replica would take room for ever, and only the next start would
        report it.
        """
        number = cut_off(host, monkeypatch)
        host.moves.set_mode(host.id_of("a"), VolumeMode.IN_SERVICE)
        if is_restarted:
            host.restart()
        assert [number] == [one.container_id for one in host.store.unloadable()]

        host.work()

        assert 1 == len(directories(host, number))
        assert () == host.store.unloadable()
        host.assert_whole(COUNT)
        host.restart()
        host.assert_whole(COUNT)

    def test_a_deleted_block_does_not_come_back(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The block was deleted in the copy, which is served. A start must neither choose the
        other replica nor lose the tombstone.
        """
        number = cut_off(host, monkeypatch)
        remove_blocks(host.store, number, [ONE])
        host.moves.set_mode(host.id_of("a"), VolumeMode.IN_SERVICE)

        host.restart()
        host.work()

        assert {ONE} == host.store.view(number).tombstones().keys()
        with pytest.raises(RefusedError):
            host.store.view(number).block(ONE)
        expected = content(number, 2)
        assert expected == host.store.view(number).read(BlockId(2), 0, len(expected))
        assert 1 == len(directories(host, number))

    def test_replica_that_lacks_a_tombstone_does_not_replace_the_copy(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The copy with the tombstone is damaged, so a start serves the other replica. The copy
        stays until that one has the tombstone, too.
        """
        number = cut_off(host, monkeypatch)
        remove_blocks(host.store, number, [ONE])
        file = host.store.paths(number).block_file(BlockId(2))
        file.write_bytes(bytes(file.stat().st_size))
        host.moves._verify(number)
        host.moves.set_mode(host.id_of("a"), VolumeMode.IN_SERVICE)
        host.restart()
        assert number in host.on("a")

        host.work()

        progress = host.moves.progress(host.id_of("b"))
        assert progress is not None
        assert "that block 1 was deleted" in progress.stuck[number].why
        assert ["a", "b"] == directories(host, number)
        remove_blocks(host.store, number, [ONE])
        host.clock.advance_s(RETRY_S + 1)
        host.work()
        assert ["a"] == directories(host, number)
        assert {ONE} == host.store.view(number).tombstones().keys()


class TestCancelledMeanwhile:
    @pytest.mark.parametrize("is_read", [False, True])
    def test_a_move_that_goes_on_leaves_nothing_to_tell_of(
        self, host: Host, monkeypatch: pytest.MonkeyPatch, *, is_read: bool
    ) -> None:
        """The copy is served and not read yet when the move is cancelled. The move ends with
        either replica. A report of the second one would stay for ever and block a later copy of
        the container.
        """
        [number, *_] = map(ContainerId, host.on("a"))
        finish = host.store.services.finish_move

        def cancelled(*arguments: object) -> object:
            facts = finish(*arguments)  # type: ignore[arg-type]
            if not is_read:
                file = host.store.paths(number).block_file(BlockId(2))
                file.write_bytes(bytes(file.stat().st_size))
            host.moves.set_mode(host.id_of("a"), VolumeMode.IN_SERVICE)
            assert [number] == [one.container_id for one in host.store.unloadable()]
            return facts

        monkeypatch.setattr(host.store.services, "finish_move", cancelled)
        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
        host.work()

        assert ["b" if is_read else "a"] == directories(host, number)
        assert () == host.store.unloadable()
        host.assert_whole(COUNT)

    def test_move_that_ends_during_the_look_is_not_reported_unloadable(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The original goes between the read of the index and the report about it."""
        cut_off(host, monkeypatch)
        look = host.store.services.left_on

        def ended(volume_id: str) -> list[RemainingReplica]:
            found = look(volume_id)
            monkeypatch.undo()
            host.moves.step()
            return found

        monkeypatch.setattr(host.store.services, "left_on", ended)
        host.moves.set_mode(host.id_of("a"), VolumeMode.IN_SERVICE)

        assert () == host.store.unloadable()


class TestTakenBack:
    def test_a_copy_that_could_not_be_removed_is_not_forgotten(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The copy is whole, and on a volume that stays. A start would serve it after the delete
        of the other one. The copy is removed when possible, and the container moves then.
        """
        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
        [number, *_] = map(ContainerId, host.on("a"))

        def failing(*_: object, **__: object) -> str:
            raise VolumeFailed(Code.IO_EXCEPTION, "no more today")

        with monkeypatch.context() as broken:
            broken.setattr(volume_services, "delete_replica", failing)
            with pytest.raises(SutureError):
                host.moves._deal_with(
                    host.id_of("a"), host.store.services.left_on(host.id_of("a"))[0]
                )
        assert number in host.on("a")
        assert ["a", "b"] == directories(host, number)

        with pytest.raises(UnavailableError, match="is on both"):
            host.store.delete_container(number, force=True)

        host.work()
        host.clock.advance_s(RETRY_S + 1)
        host.work()
        assert VolumeMode.RETIRED is host.store.services.of(host.id_of("a")).mode
        host.assert_whole(COUNT)


class TestReturnedDisk:
    @pytest.mark.parametrize("is_restarted", [False, True])
    def test_an_equal_one_goes_before_any_delete(self, host: Host, *, is_restarted: bool) -> None:
        """The disk was away, the container was copied to the other disk, and the first is back.
        The second replica is not needed, and would outlive the delete of the first.
        """
        number = ContainerId(host.on("a")[0])
        returned_disk(host, number)
        if is_restarted:
            host.restart()

        with pytest.raises(UnavailableError, match="is on both"):
            host.store.delete_container(number, force=True)

        host.work()
        assert 1 == len(directories(host, number))
        host.assert_whole(COUNT)
        host.store.delete_container(number, force=True)
        host.restart()
        assert number not in host.store.replica_ids()

    def test_returned_replica_with_more_blocks_is_kept_and_reported(self, host: Host) -> None:
        """The served replica lacks a block, so the returned one is not deleted."""
        number = ContainerId(host.on("a")[0])
        returned_disk(host, number)
        served = host.store.volume_set.places[number]
        served.index.write(lambda rows: rows.delete_block(number, ONE))
        host.store.paths(number).block_file(ONE).unlink()
        host.store.paths(number).tree.unlink()

        host.work()

        assert ["a", "b"] == directories(host, number)
        assert [number] == [one.container_id for one in host.store.unloadable()]
        progress = host.moves.progress(host.id_of("a"))
        assert progress is not None
        assert {number} == progress.stuck.keys()

    def test_returned_open_replica_that_lacks_commits_is_removed(self, host: Host) -> None:
        """The replica lost its writer together with its disk and was never closed, so its root
        differs. Its removal lets later deletes proceed.
        """
        number = ContainerId(COUNT + 1)
        host.moves.set_mode(host.id_of("b"), VolumeMode.READ_ONLY)
        host.write(number, closed=False)
        host.moves.set_mode(host.id_of("b"), VolumeMode.IN_SERVICE)
        host.store.close_container(number, bcsid=Bcsid(ID_MAX))
        assert ReplicaState.QUASI_CLOSED is host.store.replica(number).state
        returned_disk(host, number, count=BLOCKS + 1)

        host.work()

        assert ["b"] == directories(host, number)
        assert ReplicaState.CLOSED is host.store.replica(number).state
        assert BLOCKS + 1 == len(host.store.view(number).blocks())

    def test_another_shard_of_it_is_something_else(self, host: Host) -> None:
        """The other shard replaces no shard, is not replaced by one, and outlives the delete of
        the first.
        """
        number = ContainerId(host.on("a")[0])
        returned_disk(host, number)
        served = host.store.volume_set.places[number]
        with served.index.read() as rows:
            row = rows.replica(number)
        served.index.write(lambda rows: rows.put_replica(number, replace(row, replica_index=3)))

        host.work()

        assert ["a", "b"] == directories(host, number)
        host.store.delete_container(number, force=True)
        host.restart()
        assert number in host.on("a")
        assert ReplicaState.CLOSED is host.store.replica(number).state
        assert BLOCKS == len(host.store.view(number).blocks())

    def test_no_move_is_written_over_one(self, host: Host) -> None:
        """
        The volume of the one that is served retires, to the volume that has the other: which may
        have what the first one lacks.
        """
        number = ContainerId(host.on("a")[0])
        returned_disk(host, number)
        served = host.store.volume_set.places[number]
        with served.index.read() as rows:
            row = rows.replica(number)
        served.index.write(lambda rows: rows.put_replica(number, replace(row, replica_index=3)))
        host.moves.set_mode(host.id_of("b"), VolumeMode.RETIRING)

        host.work()

        progress = host.moves.progress(host.id_of("b"))
        assert progress is not None
        assert "has another replica of the container" in progress.stuck[number].why
        assert not progress.stuck[number].has_no_room
        host.restart()
        assert ["a", "b"] == directories(host, number)


def test_a_directory_that_nobody_can_load_is_none(host: Host) -> None:
    """A directory without a row is left alone as always, and no delete waits for it."""
    number = ContainerId(host.on("b")[0])
    group = host.store.paths(number).root.parent
    host.store.close()
    strange = host.at("a") / group.relative_to(host.at("b")) / str(number)
    (strange / "chunks").mkdir(parents=True)
    host.open("a", "b")

    host.work()
    host.store.delete_container(number, force=True)

    assert strange.is_dir()
    assert [number] == [one.container_id for one in host.store.unloadable()]
    shutil.rmtree(strange)
