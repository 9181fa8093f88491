"""A volume that retires with very many replicas: what its looks cost, and what is told of it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.cli.change.volume_commands import VolumeRef as Named
from agent.cli.change.volume_commands import does_rest, ending
from agent.host import volume_admin
from agent.host.volume_admin import VolumeDescriber
from agent.host.volume_evacuation import REST_S_MAX, RETRY_S
from agent.scan.volume_latency import LatencyWatch
from agent.store.volumes.service_mode import VolumeMode
from merkle.replica import ContainerId
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.heard import logged
from tests.support.storage.two_volumes import Host, filled

COUNT = 8
LOOK_S = 1.0


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Two volumes with containers."""
    with filled(tmp_path, COUNT) as made:
        yield made


@pytest.fixture
def looks(host: Host, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the looks at all replicas of a volume, each of which takes a second."""
    counted: Counter[str] = Counter()
    services = host.store.services
    real = {name: getattr(services, name) for name in ("left_on", "unmovable_on")}

    def slow(name: str) -> object:
        def look(volume_id: str) -> object:
            counted[name] += 1
            host.clock.advance_s(LOOK_S)
            return real[name](volume_id)

        return look

    for name in real:
        monkeypatch.setattr(services, name, slow(name))
    return counted


@pytest.fixture
def _without_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """No volume has room for anything."""
    monkeypatch.setattr("agent.store.operations.replica_import.RESERVED_BYTES_MIN", 1 << 60)


def status_of(host: Host, name: str) -> pb.VolumeStatus:
    """Return what the agent says of a volume."""
    [volume] = [one for one in host.store.volumes() if one.path == host.at(name)]
    status = pb.VolumeStatus(
        volume_id=volume.volume_id, path=name, container_count=volume.container_count
    )
    VolumeDescriber(host.store, host.moves, LatencyWatch(dict))(status)
    return status


@pytest.mark.usefixtures("_without_room")
class TestLooks:
    def test_volume_without_a_target_spends_little_time_on_looks(
        self, host: Host, looks: Counter[str]
    ) -> None:
        """The worker runs every five seconds, and nothing changes for days while it waits for a
        disk.
        """
        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
        host.work()
        looks.clear()
        began_s = host.clock.monotonic_s()

        for _ in range(300):
            host.clock.advance_s(5.0)
            host.work()

        spent_s = looks.total() * LOOK_S
        assert 0 < spent_s
        assert spent_s < 0.1 * (host.clock.monotonic_s() - began_s)

    def test_moves_resume_when_a_target_is_available_again(
        self, host: Host, looks: Counter[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The volume retires without another request."""
        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
        host.work()
        monkeypatch.undo()

        host.clock.advance_s(RETRY_S + REST_S_MAX)
        host.work()

        assert VolumeMode.RETIRED is host.store.services.of(host.id_of("a")).mode
        host.assert_whole(COUNT)
        assert looks

    @pytest.mark.parametrize("is_given_back", [False, True])
    def test_steering_a_stuck_volume_takes_effect_at_once(
        self, host: Host, looks: Counter[str], *, is_given_back: bool
    ) -> None:
        """An operator's request is processed at once, whether the volume retires again or was
        returned to service in between.
        """
        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
        host.work()
        looks.clear()

        if is_given_back:
            host.moves.set_mode(host.id_of("a"), VolumeMode.IN_SERVICE)
        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
        host.moves.step()

        assert looks


def test_single_look_serves_many_moves(host: Host, looks: Counter[str]) -> None:
    """With a look for each replica, a hundred thousand replicas would take a hundred thousand
    seconds.
    """
    count = len(host.on("a"))
    assert count > 2

    host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
    looks.clear()
    for _ in range(count):
        host.moves.step()

    assert 1 == looks["left_on"]
    assert [] == host.on("a")


def test_replica_deleted_after_the_look_is_not_reported_as_stuck(host: Host) -> None:
    """The replica was deleted between the look and its turn."""
    gone = ContainerId(host.on("a")[-1])
    host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
    host.moves.step()
    host.store.delete_container(gone, force=True)

    with logged() as logs:
        host.work()

    assert not [one for one in logs if one["event"] == "replica_move_failed"]
    assert VolumeMode.RETIRED is host.store.services.of(host.id_of("a")).mode


@pytest.mark.usefixtures("_without_room")
class TestStuck:
    def test_stuck_replicas_beyond_the_shown_ones_are_counted(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`retire --wait` ends when nothing moves any more, and then the SCM copies what has no
        room. It waited for ever if more replicas were stuck than are named.
        """
        monkeypatch.setattr(volume_admin, "STUCK_SHOWN_MAX", 1)
        count = len(host.on("a"))
        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)
        host.moves.step()
        assert not does_rest(status_of(host, "a"))

        host.work()

        status = status_of(host, "a")
        assert 1 == len(status.stuck_container_ids) == len(status.unplaceable_container_ids)
        assert count == status.stuck_count
        assert does_rest(status)
        assert f"still has {count} replicas" in ending(Named("dn", "dn:1", "v"), status)

    def test_the_same_trouble_is_logged_once(self, host: Host) -> None:
        """
        A hundred thousand lines every half minute bury what else is in the log.
        """
        count = len(host.on("a"))
        host.moves.set_mode(host.id_of("a"), VolumeMode.RETIRING)

        with logged() as logs:
            for _ in range(4):
                host.work()
                host.clock.advance_s(RETRY_S + 1)

        assert count == len([one for one in logs if one["event"] == "replica_move_failed"])
