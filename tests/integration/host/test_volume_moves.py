"""A volume that retires: what leaves it, in which order, and what a death leaves behind."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.host.volume_evacuation import RETRY_S
from agent.leases import ContainerLeases
from agent.store.operations.replica_import import ReplicaImport
from agent.store.recovery.fsck import fsck
from agent.store.replica_store import ReplicaStore
from agent.store.volumes.service_mode import VolumeMode
from merkle.replica import (
    BlockId,
    ContainerId,
    ReplicaState,
)
from suture.errors import Code, RefusedError, SutureError
from tests.support.storage.stored_replica import CLUSTER
from tests.support.storage.two_volumes import Host, Killed


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Two empty volumes."""
    with ThreadPoolExecutor(8) as executor:
        made = Host(tmp_path, executor)
        yield made
        made.store.close()


class TestRetire:
    def test_every_replica_moves_and_the_volume_is_retired(self, host: Host) -> None:
        """
        All is read whole where it is now, nothing is left, fsck is content with both volumes, and
        the next start does not open the empty one.
        """
        before = host.fill()
        assert before["a"]
        roots = {n: host.store.view(ContainerId(n)).tree().root for n in range(1, 5)}

        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
        host.work()

        assert [] == host.store.services.left_on(host.id_of("a"))
        assert [1, 2, 3, 4] == host.on("b")
        assert VolumeMode.RETIRED is host.store.services.of(host.id_of("a")).mode
        host.assert_whole()
        for number, root in roots.items():
            facts = host.store.replica(ContainerId(number))
            assert facts.tree is not None
            assert root == facts.tree.root
            assert ReplicaState.CLOSED is facts.state
            if number in before["a"]:
                assert facts.data_scan_at_ms > 0
        host.restart()
        assert [host.at("b")] == [volume.path for volume in host.store.volumes()]
        host.assert_whole()
        host.store.close()
        for name in ("a", "b"):
            assert () == fsck(host.at(name), read_data=True).problems
        host.open("a", "b")

    def test_open_replica_is_closed_before_it_moves(self, host: Host) -> None:
        """The open container becomes quasi-closed, and moves then."""
        host.write(1, closed=False)
        name = "a" if host.on("a") else "b"

        host.moves.set_mode(host.id_of(name), VolumeMode.RETIRING)
        host.work()

        assert ReplicaState.QUASI_CLOSED is host.store.replica(ContainerId(1)).state
        assert VolumeMode.RETIRED is host.store.services.of(host.id_of(name)).mode
        host.assert_whole(1)

    def test_retiring_volume_takes_no_new_replicas(self, host: Host) -> None:
        """New replicas go to the other volume, also after a restart, until the retirement is
        cancelled.
        """
        volume_id = host.id_of("a")
        for mode in (VolumeMode.READ_ONLY, VolumeMode.RETIRING):
            host.store.services.change(volume_id, mode)
            host.restart()
            assert mode is host.store.services.of(volume_id).mode
            first = 1 + len(host.store.replica_ids())
            for number in range(first, first + 3):
                host.write(number)
            assert [] == host.on("a")

        host.moves.set_mode(volume_id, VolumeMode.IN_SERVICE)
        host.write(50)
        host.write(51)

        assert host.on("a")

    def test_a_cancelled_one_keeps_what_it_still_has(self, host: Host) -> None:
        """Moved replicas stay at their new place, and the rest stays, too."""
        count = len(host.fill(6)["a"])
        assert count > 1
        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
        host.moves.step()

        host.moves.set_mode(host.id_of("a"), VolumeMode.IN_SERVICE)
        host.work()

        assert count - 1 == len(host.on("a"))
        host.assert_whole(6)

    def test_the_last_volume_in_service_does_not_retire(self, host: Host) -> None:
        """
        Its data would have nowhere to go: that is a decommission.
        """
        host.moves.set_mode(host.id_of("a"), VolumeMode.READ_ONLY)

        with pytest.raises(RefusedError, match="only volume") as caught:
            host.moves.set_mode(host.id_of("b"), VolumeMode.RETIRING)

        assert "decommission" in caught.value.hint

    def test_a_migration_goes_to_the_volume_that_was_named(self, host: Host) -> None:
        """The replica goes to the named volume although a third has more room."""
        before = host.fill()
        host.restart("a", "b", "c")
        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING, host.id_of("c"))

        host.work()

        assert before["a"] == host.on("c")
        assert before["b"] == host.on("b")

    def test_a_disk_at_the_same_place_is_a_new_volume(self, host: Host) -> None:
        """
        The retired one is not missed: an empty directory at its place is formatted.
        """
        host.fill()
        old = host.id_of("a")
        host.moves.set_mode(old, VolumeMode.RETIRING)
        host.work()
        host.restart()
        host.at("a").rename(host.path / "pulled")

        added = host.store.services.add_volume(host.at("a"))

        assert old != added.volume_id
        host.restart()
        assert {host.at("a"), host.at("b")} == {v.path for v in host.store.volumes()}
        host.assert_whole()


class TestDamage:
    def test_a_copy_that_cannot_be_read_is_taken_back(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The bytes on the other medium differ from those written. The old replica is served
        again, the copy is removed, and the failure is reported. A later attempt moves it.
        """
        host.fill(2)
        name = "a" if 1 in host.on("a") else "b"
        volume_id = host.id_of(name)
        finish = host.store.services.finish_move

        def rotten(*arguments: object) -> object:
            facts = finish(*arguments)  # type: ignore[arg-type]
            file = host.store.paths(facts.container_id).block_file(BlockId(2))
            data = bytearray(file.read_bytes())
            data[30_000] ^= 1
            file.write_bytes(data)
            return facts

        monkeypatch.setattr(host.store.services, "finish_move", rotten)
        host.moves.set_mode(volume_id, VolumeMode.RETIRING)
        host.work()

        progress = host.moves.progress(volume_id)
        assert progress is not None
        assert "its copy is damaged" in progress.stuck[ContainerId(1)].why
        assert 1 in host.on(name)
        assert ReplicaState.CLOSED is host.store.replica(ContainerId(1)).state
        host.assert_whole(2)
        monkeypatch.undo()
        host.clock.advance_s(RETRY_S + 1)
        host.work()
        assert VolumeMode.RETIRED is host.store.services.of(volume_id).mode
        host.assert_whole(2)

    def test_damage_moves_as_damage(self, host: Host) -> None:
        """
        A damaged replica leaves the disk, too, and is no better for it: it may be the last.
        """
        host.fill(2)
        name = "a" if 1 in host.on("a") else "b"
        file = host.store.paths(ContainerId(1)).block_file(BlockId(2))
        data = bytearray(file.read_bytes())
        data[30_000] ^= 1
        file.write_bytes(data)

        host.moves.set_mode(host.id_of(name), VolumeMode.RETIRING)
        host.work()

        facts = host.store.replica(ContainerId(1))
        assert ReplicaState.UNHEALTHY is facts.state
        assert 1 == facts.finding_count
        assert VolumeMode.RETIRED is host.store.services.of(host.id_of(name)).mode

    def test_leased_replica_waits_and_the_others_move(self, host: Host) -> None:
        """A replica that is being copied away keeps its place, and moves when it is free."""
        host.fill(6)
        volume_id = host.id_of("a")
        used, *others = host.on("a")
        assert others
        with host.leases.share(ContainerId(used)), quick(host.leases):
            host.moves.set_mode(volume_id, VolumeMode.RETIRING)
            host.work()
            assert [used] == host.on("a")

        host.clock.advance_s(RETRY_S + 1)
        host.work()

        assert VolumeMode.RETIRED is host.store.services.of(volume_id).mode

    def test_without_room_nothing_moves(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each replica is reported as stuck, and all stay."""
        before = host.fill()
        monkeypatch.setattr("agent.store.operations.replica_import.RESERVED_BYTES_MIN", 1 << 60)

        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
        host.work()

        progress = host.moves.progress(host.id_of("a"))
        assert progress is not None
        assert {*before["a"]} == {*progress.stuck}
        assert before["a"] == host.on("a")
        assert -1 == progress.eta_s(1, host.moves.now_s())

    def test_a_volume_that_is_not_empty_is_not_called_so(self, host: Host) -> None:
        """The store checks for itself, whatever the caller claims, and reports what is left."""
        before = host.fill()
        volume_id = host.id_of("a")
        host.store.services.change(volume_id, VolumeMode.RETIRING)

        why = host.store.services.end_retirement(volume_id)

        assert f"{len(before['a'])} replicas are left" in why
        assert VolumeMode.RETIRING is host.store.services.of(volume_id).mode

    def test_a_copy_that_was_not_read_does_not_stand_in(self, host: Host) -> None:
        """
        The store itself refuses to let the old one go.
        """
        host.fill()
        [first, *_] = host.on("a")
        host.store.services.change(host.id_of("a"), VolumeMode.RETIRING)
        with host.leases.hold(ContainerId(first)):
            host.moves._copy(ContainerId(first))

        with pytest.raises(RefusedError, match="not read whole") as caught:
            host.store.services.drop_moved(host.id_of("a"), ContainerId(first))

        assert Code.INELIGIBLE is caught.value.code
        assert ContainerId(first) in {
            left.container_id for left in host.store.services.left_on(host.id_of("a"))
        }


@contextmanager
def quick(leases: ContainerLeases) -> Iterator[None]:
    """Wait a moment for a lease, not a minute."""
    hold = leases.hold

    def soon(container_id: ContainerId, timeout_s: float = 0.05, **others: bool) -> object:
        return hold(container_id, min(timeout_s, 0.05), **others)

    leases.hold = soon  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        leases.hold = hold  # type: ignore[method-assign]


STEPS = ("begin_move", "finish_move", "drop_moved", "end_retirement")


class TestDeath:
    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    @pytest.mark.parametrize("step", STEPS)
    def test_at_any_step_all_is_there_and_it_goes_on(
        self, host: Host, monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool
    ) -> None:
        """
        Killed before or after a step: every byte is served by the next start, which goes on with
        the retirement by itself and ends it.
        """
        host.fill()
        volume_id = host.id_of("a")
        real: Callable[..., object] = getattr(host.store.services, step)

        def deadly(*arguments: object) -> object:
            made = real(*arguments) if after else None
            if isinstance(made, ReplicaImport):  # as the end of a process does
                made._rows.close()
                os.close(made._directory_fd)
            raise Killed

        host.moves.set_mode(volume_id, VolumeMode.RETIRING)
        monkeypatch.setattr(host.store.services, step, deadly)
        with pytest.raises(Killed):
            host.work()
        monkeypatch.undo()

        if step == "end_retirement" and after:
            host.restart()
            assert [host.at("b")] == [volume.path for volume in host.store.volumes()]
        else:
            host.restart()
            host.assert_whole()
            assert () == host.store.unloadable()
            assert VolumeMode.RETIRING is host.store.services.of(volume_id).mode
            host.work()
            assert VolumeMode.RETIRED is host.store.services.of(volume_id).mode
        host.assert_whole()

    def test_while_the_old_one_is_removed(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        Half a delete is finished by the next start.
        """
        host.fill()
        volume_id = host.id_of("a")
        host.moves.set_mode(volume_id, VolumeMode.RETIRING)
        monkeypatch.setattr(
            "agent.store.operations.deleting.finish_delete",
            lambda *_: (_ for _ in ()).throw(Killed),
        )
        with pytest.raises(Killed):
            host.work()
        monkeypatch.undo()

        host.restart()
        host.assert_whole()
        host.work()

        assert VolumeMode.RETIRED is host.store.services.of(volume_id).mode
        host.assert_whole()


class TestAdd:
    def test_an_added_volume_serves_and_is_remembered(self, host: Host) -> None:
        """
        An empty directory is formatted and used at once; the next start opens it though no config
        names it, and forgets it once it is retired.
        """
        added = host.store.services.add_volume(host.at("c"))
        for number in range(1, 7):
            host.write(number)
        assert host.on("c")

        host.restart()

        assert added.volume_id == host.id_of("c")
        host.assert_whole(6)
        host.moves.set_mode(added.volume_id, VolumeMode.RETIRING)
        host.work()
        host.restart()
        assert {host.at("a"), host.at("b")} == {v.path for v in host.store.volumes()}
        host.assert_whole(6)

    def test_directory_that_is_no_usable_volume_is_refused(self, host: Host) -> None:
        """A directory with other content, a volume that is open already, and another datanode's
        volume are refused.
        """
        (host.at("full") / "hdds").mkdir()
        (host.at("full") / "hdds" / "stranger").write_bytes(b"")
        with ReplicaStoreOf(host.at("other")):
            pass

        for name in ("full", "a", "other"):
            with pytest.raises(SutureError):
                host.store.services.add_volume(host.at(name))

        assert 2 == len(host.store.volumes())

    def test_directory_with_files_is_not_formatted(self, host: Host) -> None:
        """A directory given by mistake, such as /etc, stays as it is."""
        (host.at("c") / "passwd").touch()

        with pytest.raises(SutureError, match="c: it is not a volume and contains 'passwd'"):
            host.store.services.add_volume(host.at("c"))

        assert ["passwd"] == [path.name for path in host.at("c").iterdir()]

    @pytest.mark.parametrize("is_away", [False, True])
    def test_no_volume_is_within_another(self, host: Host, is_away: bool) -> None:
        """A volume is refused inside or around another one, also through a link, and also if
        that volume was left out because its disk is away.
        """
        host.store.close()
        if is_away:
            host.at("a").rename(host.path / "away")
        host.open("a", "b")
        inner = host.at("a") / "inner"
        inner.mkdir()
        (host.path / "link").symlink_to(inner)

        for path in (inner, host.path / "link", host.path):
            with pytest.raises(SutureError, match="share a directory"):
                host.store.services.add_volume(path)

        assert [] == list(inner.iterdir())
        assert not (host.path / "hdds").exists()

    def test_a_volume_that_comes_back_serves_what_it_has(self, host: Host) -> None:
        """
        A disk that was away at the start is added without another start.
        """
        before = host.fill()
        host.store.close()
        host.at("a").rename(host.path / "away")
        host.open("a", "b")
        assert before["b"] == [facts.container_id for facts in host.store.replicas()]
        host.at("a").rmdir()
        (host.path / "away").rename(host.path / "a")

        host.store.services.add_volume(host.path / "a")

        assert before["a"] == host.on("a")
        assert not any(volume.failed for volume in host.store.volumes())
        host.assert_whole()


class ReplicaStoreOf:
    """The store of another datanode."""

    def __init__(self, path: Path) -> None:
        self.store = ReplicaStore.open([path], cluster_id=CLUSTER, datanode_id="another")

    def __enter__(self) -> ReplicaStore:
        return self.store

    def __exit__(self, *_: object) -> None:
        self.store.close()
