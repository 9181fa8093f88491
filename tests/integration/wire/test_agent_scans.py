"""What an agent in its own process says about its scans, field by field, and how it is steered."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pytest

from agent.store.options import StoreOptions
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from suture.wire.clients.peer import Peer
from suture.wire.v1 import datanode_pb2 as pb
from tests.support.control.scripted_scm import CLUSTER_ID, ScriptedScm
from tests.support.faults.victim import Victim
from tests.support.storage.stores import write_block
from tests.support.waiting import wait_until

FIRST, SECOND = ContainerId(7), ContainerId(8)
CHUNK_BYTES: Final = 40_000
BLOCK_BYTES: Final = 100 * CHUNK_BYTES
RATE_BYTES_PER_S: Final = 10_000  # a scan lasts longer than the tests
PAUSE_MS: Final = 3_600_000


@dataclass
class Scans:
    """An agent that reads two containers slowly."""

    peer: Peer

    def ask(self, **wish: object) -> pb.ScrubStatusResponse:
        """Steer the scans, or only ask."""
        if not wish:
            return self.peer.stub.ScrubStatus(pb.ScrubStatusRequest())
        return self.peer.stub.ControlScrub(pb.ControlScrubRequest(**wish))  # type: ignore[arg-type]

    def until(self, condition: Callable[[pb.VolumeScrub], bool]) -> pb.VolumeScrub:
        """Wait until the only volume is so."""
        found: list[pb.VolumeScrub] = []

        def is_so() -> bool:
            found[:] = self.ask().volumes
            return condition(found[0])

        wait_until(is_so)
        return found[0]


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scans]:
    """An agent with one volume."""
    folder = tmp_path_factory.mktemp("agent")
    path = folder / "volume"
    path.mkdir()
    opened = ReplicaStore.open(
        [path], cluster_id=CLUSTER_ID, datanode_id="dn-a", options=StoreOptions(reserve_bytes=0)
    )
    with closing(opened) as store:
        for container_id in (FIRST, SECOND):
            store.create_container(container_id)
            write_block(store, container_id, 1, chunk_count=100, chunk_bytes=CHUNK_BYTES)
            store.close_container(container_id, bcsid=1)
    with ScriptedScm() as scm, Victim(folder / "agent.log") as victim:
        config = folder / "agent.toml"
        config.write_text(
            f'[node]\nlisten = "127.0.0.1:0"\nscm = "{scm.address}"\n'
            f'[storage]\nvolumes = ["{path}"]\nreserve_bytes = 0\n'
            f"[scan]\nwatch = false\nstart_jitter_s = 0\nvolume_bytes_per_s = {RATE_BYTES_PER_S}\n"
            '[observe]\nlisten = ""\n'
        )
        with Peer(victim.start(config)) as peer:
            yield Scans(peer)
        victim.stop()


def test_progress_of_a_scan_is_whole(scans: Scans) -> None:
    """The container that is read, how far, how fast, and what is left."""
    scans.ask(resume=True)

    volume = scans.until(
        lambda v: v.state == "reading" and v.speed_bytes_per_s > 0 < v.container_bytes_read
    )

    assert volume.container_id in {FIRST, SECOND}
    assert volume.container_bytes == BLOCK_BYTES
    assert 0 < volume.container_bytes_read <= BLOCK_BYTES
    assert 0 < volume.scanned_bytes < 2 * BLOCK_BYTES
    assert volume.rate_bytes_per_s == RATE_BYTES_PER_S
    assert 0 < volume.needed_bytes_per_s < RATE_BYTES_PER_S
    assert volume.due_count in {1, 2}
    assert 0 < volume.due_bytes <= 2 * BLOCK_BYTES == volume.used_bytes
    assert volume.never_read_count == 2
    assert volume.eta_ms != 0
    assert volume.promise


def test_scan_pauses_for_the_asked_time_and_resumes(scans: Scans) -> None:
    """Only the named volume pauses, and only until it is resumed."""
    [volume] = scans.ask().volumes

    scans.ask(volume_id=volume.volume_id, pause_ms=PAUSE_MS)

    paused = scans.until(lambda v: v.state == "paused")
    assert PAUSE_MS // 2 < paused.pause_left_ms <= PAUSE_MS
    scans.ask(volume_id=volume.volume_id, resume=True)
    assert scans.until(lambda v: v.state == "reading").pause_left_ms == 0


def test_scan_of_a_container_is_cancelled(scans: Scans) -> None:
    """The scan goes on with the other container."""
    scans.ask(resume=True)
    volume = scans.until(lambda v: v.container_id > 0)

    scans.ask(volume_id=volume.volume_id, skip_container_id=volume.container_id)

    scans.until(lambda v: v.container_id not in {0, volume.container_id})


def test_queued_scan_is_answered_at_once_and_counted(scans: Scans) -> None:
    """The answer has the bytes that the scan will read, and no result."""
    ask = scans.peer.stub.ScanContainer

    answers = [
        list(ask(pb.ScanContainerRequest(container_id=container_id, queue=True)))
        for container_id in (FIRST, SECOND)
    ]

    assert [[pb.ScanProgress(queued=True, bytes_total=BLOCK_BYTES)]] * 2 == answers
    assert scans.ask().on_demand_waiting > 0
