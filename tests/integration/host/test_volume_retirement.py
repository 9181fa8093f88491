"""A volume that is retired, taken back or added: what is still on it, and what is told of it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from agent.config.options import ScanConfig
from agent.host.volume_evacuation import RETRY_S
from agent.scan.scan_manager import ScanManager
from agent.store.index.transactions import IndexChange
from agent.store.operations.replica_import import ImportSpec
from agent.store.volume_services import RemainingReplica
from agent.store.volumes.service_mode import VolumeMode, VolumeUse
from agent.store.volumes.volume import Volume
from agent.transfer.incoming import ReplicaImporter
from agent.transfer.outgoing import ReplicaExport
from agent.transfer.parts import ImportMessage, read_part
from merkle.replica import (
    Bcsid,
    ContainerId,
    ReplicaState,
)
from suture.errors import Code, RefusedError, UnavailableError, VolumeFailed
from tests.support.storage.two_volumes import Host

SLOW = ScanConfig(data_interval_s=60, ceiling_bytes_per_s=1)
ANNOUNCED = ImportSpec(
    container_id=ContainerId(1),
    state=ReplicaState.CLOSED,
    former_state=None,
    replica_index=0,
    bcsid=Bcsid(1),
    origin_datanode_id="dn-2",
    created_at_ms=1,
    data_bytes=1,
)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Two empty volumes."""
    with ThreadPoolExecutor(8) as executor:
        made = Host(tmp_path, executor)
        yield made
        made.store.close()


class TestTakeBack:
    def test_added_volume_taken_back_into_service_is_remembered(self, host: Host) -> None:
        """The next start serves its acknowledged data though the config does not name the
        volume.
        """
        added = host.store.services.add_volume(host.at("c")).volume_id
        host.moves.set_mode(added, VolumeMode.RETIRING)
        host.work()
        assert VolumeMode.RETIRED is host.store.services.of(added).mode

        host.moves.set_mode(added, VolumeMode.IN_SERVICE)
        for number in range(1, 7):
            host.write(number)
        assert host.on("c")
        host.restart()

        assert added == host.id_of("c")
        host.assert_whole(6)

    def test_configured_volume_taken_back_is_missed_again(self, host: Host) -> None:
        """The place of the volume is not formatted while its disk is away, and a start whose
        config no longer names it does not open it.
        """
        volume_id = host.id_of("a")
        host.moves.set_mode(volume_id, VolumeMode.RETIRING)
        host.work()
        host.moves.set_mode(volume_id, VolumeMode.READ_ONLY)
        host.store.close()
        host.at("a").rename(host.path / "away")

        host.open("a", "b")

        [error] = [volume.error for volume in host.store.volumes() if volume.failed]
        assert f"volume {volume_id} was there" in error
        host.at("a").rmdir()
        (host.path / "away").rename(host.at("a"))
        host.restart("b")
        assert [host.at("b")] == [volume.path for volume in host.store.volumes()]


class TestArrivals:
    def test_a_volume_to_which_one_is_on_its_way_is_not_empty(
        self, host: Host, tmp_path: Path
    ) -> None:
        """The volume retires when the arriving replica has arrived and moved, too."""
        names: list[str] = []

        def slow(parts: list[bytes]) -> Iterator[ImportMessage]:
            for part in parts[:-1]:
                yield read_part(part)
            names.extend(n for n in ("a", "b") if list(host.at(n).glob("hdds/*/tmp/importing/*")))
            host.moves.set_mode(host.id_of(names[0]), VolumeMode.RETIRING)
            host.work()
            assert VolumeMode.RETIRING is host.store.services.of(host.id_of(names[0])).mode
            yield read_part(parts[-1])

        receive_from(tmp_path / "source", host, slow)
        host.work()

        assert VolumeMode.RETIRED is host.store.services.of(host.id_of(names[0])).mode
        host.restart()
        assert [1] == host.on("b" if names == ["a"] else "a")
        host.assert_whole(1)

    def test_arrival_does_not_begin_on_a_retiring_volume(self, host: Host) -> None:
        """The candidate volumes were chosen before. The reserved room is released."""
        targets = [host.store.volume_set.by_id(host.id_of("a"))]
        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)

        with pytest.raises(UnavailableError, match="no longer accepts new replicas"):
            host.store.services.begin_arrival(ANNOUNCED, targets)

        assert ANNOUNCED.container_id not in host.store.volume_set.arrivals
        host.work()
        assert VolumeMode.RETIRED is host.store.services.of(host.id_of("a")).mode

    def test_container_is_not_created_on_a_volume_retired_meanwhile(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The volume was chosen before. The new replica is deleted, and nothing is acknowledged."""
        chosen = host.store.volume_set.by_id(host.id_of("a"))

        def slow(*_: object) -> Volume:
            host.moves.set_mode(chosen.volume_id, VolumeMode.RETIRING)
            host.work()
            return chosen

        monkeypatch.setattr("agent.store.replica_store.choose_volume", slow)
        with pytest.raises(UnavailableError, match="retired concurrently"):
            host.store.create_container(ContainerId(1))

        assert [] == host.store.services.left_on(chosen.volume_id)
        assert VolumeMode.RETIRED is host.store.services.of(chosen.volume_id).mode

    def test_replica_created_while_a_volume_is_marked_empty_is_moved(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The replica was created after the look at the volume and before RETIRED was written.
        The volume retires again.
        """
        chosen = host.store.volume_set.by_id(host.id_of("a"))
        keep = host.store.services._store_mode

        def slow(volume: Volume, service: VolumeUse) -> VolumeUse:
            if service.mode is VolumeMode.RETIRED and 1 not in host.store.replica_ids():
                with monkeypatch.context() as patch:
                    patch.setattr("agent.store.replica_store.choose_volume", lambda *_: chosen)
                    host.write(1)
            return keep(volume, service)

        monkeypatch.setattr(host.store.services, "_store_mode", slow)
        host.moves.set_mode(chosen.volume_id, VolumeMode.RETIRING)
        host.moves.step()

        assert VolumeMode.RETIRING is host.store.services.of(chosen.volume_id).mode
        host.work()
        assert VolumeMode.RETIRED is host.store.services.of(chosen.volume_id).mode
        assert [1] == host.on("b")
        host.assert_whole(1)


class TestWhatIsLeft:
    def test_a_volume_with_a_damaged_row_is_not_called_empty(self, host: Host) -> None:
        """The status has the remaining replica and the reason. The next start loads it, and then
        it moves.
        """
        [number, *_] = map(ContainerId, host.fill()["a"])
        volume_id = host.id_of("a")
        damage_row(host.store.volume_set.by_id(volume_id), number)

        host.moves.set_mode(volume_id, VolumeMode.RETIRING)
        host.work()

        assert VolumeMode.RETIRING is host.store.services.of(volume_id).mode
        assert "1 replicas are left" in host.store.services.end_retirement(volume_id)
        progress = host.moves.progress(volume_id)
        assert progress is not None
        assert [number] == list(progress.unmovable)
        assert "checksum of the row" in progress.unmovable[number]
        host.restart()
        host.work()
        assert VolumeMode.RETIRED is host.store.services.of(volume_id).mode
        host.assert_whole()

    def test_volume_with_files_that_no_row_names_does_not_retire(self, host: Host) -> None:
        """This holds for files in their place and elsewhere. The volume retires when they were
        removed.
        """
        volume_id = host.id_of("a")
        layout = host.store.volume_set.by_id(volume_id).layout
        lost, stray = layout.replica(ContainerId(777)).root, layout.current / "containerDir9" / "5"
        for directory in (lost, stray):
            directory.mkdir(parents=True)

        host.moves.set_mode(volume_id, VolumeMode.RETIRING)
        host.work()

        progress = host.moves.progress(volume_id)
        assert progress is not None
        assert {5, 777} == progress.unmovable.keys()
        assert str(lost) in progress.unmovable[ContainerId(777)]
        assert str(stray) in progress.unmovable[ContainerId(5)]
        assert VolumeMode.RETIRING is host.store.services.of(volume_id).mode
        for directory in (lost, stray):
            directory.rename(host.path / directory.name)
        host.work()
        assert VolumeMode.RETIRED is host.store.services.of(volume_id).mode

    def test_unclosable_replica_does_not_stop_other_retirements(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A read-only volume is full: the failure is reported and retried, and its neighbour
        retires.
        """
        host.write(1, closed=False)
        name, other = ("a", "b") if host.on("a") else ("b", "a")
        host.restart("a", "b", "c")
        read_only, retiring = host.id_of(name), host.id_of(other)
        full = UnavailableError(Code.DISK_OUT_OF_SPACE, "No space left on device")
        close = host.store.close_container

        def fails(*_: object, **__: object) -> None:
            raise full

        monkeypatch.setattr(host.store, "close_container", fails)
        host.moves.set_mode(read_only, VolumeMode.READ_ONLY)
        host.moves.set_mode(retiring, VolumeMode.RETIRING)
        host.work()

        assert VolumeMode.RETIRED is host.store.services.of(retiring).mode
        progress = host.moves.progress(read_only)
        assert progress is not None
        assert str(full) == progress.stuck[ContainerId(1)].why
        monkeypatch.setattr(host.store, "close_container", close)
        host.work()
        assert ReplicaState.OPEN is host.store.replica(ContainerId(1)).state
        host.clock.advance_s(RETRY_S + 1)
        host.work()
        assert ReplicaState.QUASI_CLOSED is host.store.replica(ContainerId(1)).state
        assert {} == progress.stuck

    def test_a_volume_that_cannot_be_looked_at_stops_no_other_one(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its error is raised when the other volumes have been handled."""
        host.restart("a", "b", "c")
        bad = host.id_of("a")
        left_on = host.store.services.left_on

        def fails(volume_id: str) -> list[RemainingReplica]:
            if volume_id == bad:
                raise VolumeFailed(Code.IO_EXCEPTION, "its index cannot be read")
            return left_on(volume_id)

        host.moves.set_mode(bad, VolumeMode.READ_ONLY)
        host.moves.set_mode(host.id_of("b"), VolumeMode.RETIRING)
        monkeypatch.setattr(host.store.services, "left_on", fails)
        with pytest.raises(VolumeFailed, match="index"):
            host.work()

        assert VolumeMode.RETIRED is host.store.services.of(host.id_of("b")).mode


class TestAdd:
    def test_volume_that_cannot_be_scanned_in_time_is_not_opened(self, host: Host) -> None:
        """The scan interval is checked before anything is served. The volume stays as it was, is
        not remembered, and is added when the config allows it.
        """
        host.store.services.change(host.id_of("b"), VolumeMode.READ_ONLY)
        before = host.fill()
        host.restart("b", "c")
        scrub = ScanManager(host.tools, SLOW, Event())

        with pytest.raises(RefusedError, match="within the interval"):
            host.store.services.add_volume(host.at("a"), scrub.check_new)

        assert {host.at("b"), host.at("c")} == {v.path for v in host.store.volumes()}
        host.restart("b", "c")
        assert {host.at("b"), host.at("c")} == {v.path for v in host.store.volumes()}
        lax = SLOW.model_copy(update={"promise": "warn"})
        scrub = ScanManager(host.tools, lax, Event())
        added = host.store.services.add_volume(host.at("a"), scrub.check_new)
        assert scrub.add(added) is not None
        assert before["a"] == host.on("a")

    def test_unloadable_replicas_of_an_added_volume_are_reported(self, host: Host) -> None:
        """A volume that is added to a running agent reports them like one that a start opens."""
        lost = host.store.volume_set.by_id(host.id_of("a")).layout.replica(ContainerId(777)).root
        host.restart("b", "c")
        (lost / "chunks").mkdir(parents=True)

        added = host.store.services.add_volume(host.at("a"))

        [told] = host.store.unloadable()
        assert (777, added.volume_id) == (told.container_id, told.volume_id)
        with pytest.raises(RefusedError, match="cannot be loaded") as caught:
            host.store.create_container(ContainerId(777))
        assert Code.CONTAINER_EXISTS is caught.value.code


def receive_from(
    path: Path, host: Host, slowly: Callable[[list[bytes]], Iterator[ImportMessage]]
) -> None:
    """Have a host receive container 1 from another one, as slowly as that sends it."""
    path.mkdir()
    source = Host(path, host.executor)
    source.write(1)
    export = ReplicaExport(
        store=source.store,
        container_id=ContainerId(1),
        executor=host.executor,
    )
    importer = ReplicaImporter(
        store=host.store,
        leases=host.leases,
        executor=host.executor,
        now_ms=host.clock.now_ms,
    )
    importer.receive(slowly([bytes(part) for part in export.stream()]))
    source.store.close()


def damage_row(volume: Volume, container_id: ContainerId) -> None:
    """Flip a bit of a replica's row in the index."""

    def change(rows: IndexChange) -> None:
        row = bytearray(rows._replica_row(container_id))
        row[20] ^= 1
        rows._txn.put(container_id.to_bytes(8), bytes(row), db=rows._dbs.replicas)

    volume.index.write(change)
