"""A volume that is retired, taken back or added: what is still on it, and what is told of it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.errors import Code, Refused, Unavailable
from agent.store.operations.arrival import Announced
from agent.store.volumes.service_mode import Mode, Service
from agent.store.volumes.volume import Volume
from agent.transfer.incoming import Importer
from agent.transfer.outgoing import Export
from agent.transfer.parts import Part, read_part
from merkle.checksum import Algorithm
from merkle.replica import (
    Bcsid,
    ContainerId,
    ReplicaState,
)
from tests.support.storage.stored_replica import CLUSTER, DATANODE
from tests.support.storage.two_volumes import Host

ANNOUNCED = Announced(
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
    def test_one_that_was_added_and_is_taken_back_is_remembered_again(self, host: Host) -> None:
        """
        What is acknowledged on it is served by the next start, which no config tells of it.
        """
        added = host.store.services.add_volume(host.at("c")).volume_id
        host.moves.steer(added, Mode.RETIRING)
        host.work()
        assert Mode.RETIRED is host.store.services.of(added).mode

        host.moves.steer(added, Mode.IN_SERVICE)
        for number in range(1, 7):
            host.write(number)
        assert host.on("c")
        host.restart()

        assert added == host.id_of("c")
        host.assert_whole(6)

    def test_one_of_the_config_that_is_taken_back_is_missed_again(self, host: Host) -> None:
        """
        As before: its place is not formatted while its disk is away, and a start whose config
        names it no more does not open it.
        """
        volume_id = host.id_of("a")
        host.moves.steer(volume_id, Mode.RETIRING)
        host.work()
        host.moves.steer(volume_id, Mode.READ_ONLY)
        host.store.close()
        host.at("a").rename(host.path / "away")

        host.open("a", "b")

        [error] = [volume.error for volume in host.store.volumes() if volume.failed]
        assert f"was volume {volume_id}" in error
        host.at("a").rmdir()
        (host.path / "away").rename(host.at("a"))
        host.restart("b")
        assert [host.at("b")] == [volume.path for volume in host.store.volumes()]


class TestArrivals:
    def test_a_volume_to_which_one_is_on_its_way_is_not_empty(
        self, host: Host, tmp_path: Path
    ) -> None:
        """
        It retires when that has arrived and was moved, too.
        """
        names: list[str] = []

        def slow(parts: list[bytes]) -> Iterator[Part]:
            for part in parts[:-1]:
                yield read_part(part)
            names.extend(n for n in ("a", "b") if list(host.at(n).glob("hdds/*/tmp/importing/*")))
            host.moves.steer(host.id_of(names[0]), Mode.RETIRING)
            host.work()
            assert Mode.RETIRING is host.store.services.of(host.id_of(names[0])).mode
            yield read_part(parts[-1])

        receive_from(tmp_path / "source", host, slow)
        host.work()

        assert Mode.RETIRED is host.store.services.of(host.id_of(names[0])).mode
        host.restart()
        assert [1] == host.on("b" if names == ["a"] else "a")
        host.assert_whole(1)

    def test_none_begins_on_a_volume_that_has_begun_to_retire(self, host: Host) -> None:
        """
        The volumes to choose from were asked for before: the room is given back.
        """
        targets = [host.store.volume_set.by_id(host.id_of("a"))]
        host.moves.steer(host.id_of("a"), Mode.RETIRING)

        with pytest.raises(Unavailable, match="takes no new replicas"):
            host.store.services.begin_arrival(ANNOUNCED, targets)

        assert ANNOUNCED.container_id not in host.store.volume_set.arrivals
        host.work()
        assert Mode.RETIRED is host.store.services.of(host.id_of("a")).mode

    def test_none_is_made_on_a_volume_that_was_retired_meanwhile(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        It was chosen before: what was made there is deleted, and nothing is acknowledged.
        """
        chosen = host.store.volume_set.by_id(host.id_of("a"))

        def slow(*_: object) -> Volume:
            host.moves.steer(chosen.volume_id, Mode.RETIRING)
            host.work()
            return chosen

        monkeypatch.setattr("agent.store.replica_store.roomiest", slow)
        with pytest.raises(Unavailable, match="retired meanwhile"):
            host.store.create_container(ContainerId(1))

        assert [] == host.store.services.left_on(chosen.volume_id)
        assert Mode.RETIRED is host.store.services.of(chosen.volume_id).mode

    def test_one_that_comes_while_it_is_called_empty_is_moved(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """
        Made after the look at the volume and before it was written down: it retires again.
        """
        chosen = host.store.volume_set.by_id(host.id_of("a"))
        keep = host.store.services._keep

        def slow(volume: Volume, service: Service) -> Service:
            if service.mode is Mode.RETIRED and 1 not in host.store.replica_ids():
                with monkeypatch.context() as patch:
                    patch.setattr("agent.store.replica_store.roomiest", lambda *_: chosen)
                    host.write(1)
            return keep(volume, service)

        monkeypatch.setattr(host.store.services, "_keep", slow)
        host.moves.steer(chosen.volume_id, Mode.RETIRING)
        host.moves.step()

        assert Mode.RETIRING is host.store.services.of(chosen.volume_id).mode
        host.work()
        assert Mode.RETIRED is host.store.services.of(chosen.volume_id).mode
        assert [1] == host.on("b")
        host.assert_whole(1)


class TestAdd:
    def test_what_it_cannot_load_is_told_of_at_once(self, host: Host) -> None:
        """
        Of a volume that is added while others serve, as of one that a start opens.
        """
        lost = host.store.volume_set.by_id(host.id_of("a")).layout.replica(ContainerId(777)).root
        host.restart("b", "c")
        (lost / "chunks").mkdir(parents=True)

        added = host.store.services.add_volume(host.at("a"))

        [told] = host.store.unloadable()
        assert (777, added.volume_id) == (told.container_id, told.volume_id)
        with pytest.raises(Refused, match="cannot be loaded") as caught:
            host.store.create_container(ContainerId(777))
        assert Code.CONTAINER_EXISTS is caught.value.code


def receive_from(path: Path, host: Host, slowly: Callable[[list[bytes]], Iterator[Part]]) -> None:
    """Have a host receive container 1 from another one, as slowly as that sends it."""
    path.mkdir()
    source = Host(path, host.executor)
    source.write(1)
    export = Export(
        store=source.store,
        container_id=ContainerId(1),
        cluster_id=CLUSTER,
        datanode_id=DATANODE,
        executor=host.executor,
    )
    importer = Importer(
        store=host.store,
        leases=host.leases,
        executor=host.executor,
        cluster_id=CLUSTER,
        algorithm=Algorithm.XXH3_64,
        now_ms=host.clock.now_ms,
    )
    importer.receive(slowly([bytes(part) for part in export.stream()]))
    source.store.close()
