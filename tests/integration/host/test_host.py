"""The agent in one process: built, started, stopped, in whatever order that comes."""

from pathlib import Path

import pytest

from agent.config.loading import load
from agent.config.options import TaskConfig
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.host import AgentProcess
from agent.scan.scan_manager import ScanManager
from agent.scan.throttle import SharedPace
from merkle.replica import ContainerId
from suture.errors import Code, RefusedError
from suture.runtime.sd_notify import SystemdNotifier
from suture.wire.clients.peer import Peer
from suture.wire.clients.scm import ScmClient

NOWHERE = "127.0.0.1:1"  # nobody listens there
WHO = DatanodeIdentity("dn1", "CID-1", version="1", boot_id=1)


def built(folder: Path, *, listen: str = "127.0.0.1:0") -> AgentProcess:
    """Return an agent with one volume, whose control plane is away."""
    volume = folder / "volume"
    volume.mkdir(parents=True, exist_ok=True)
    config = folder / "agent.toml"
    config.write_text(
        f"""[node]
listen = "{listen}"
scm = "{NOWHERE}"
[observe]
listen = "127.0.0.1:0"
[storage]
volumes = ["{volume}"]
"""
    )
    return AgentProcess(load(config), WHO, [ScmClient(NOWHERE)], SystemdNotifier())


def test_stop_before_start_is_harmless(tmp_path: Path) -> None:
    """
    An agent that was built and never started lets go of everything: the next one has the volume.
    """
    assert [] == built(tmp_path).stop()

    host = built(tmp_path)
    host.start()
    with Peer(host.address) as peer:
        answer = peer.status()

    assert "dn1" == answer.datanode_id
    assert [] == host.stop()


def test_stop_twice_is_harmless(tmp_path: Path) -> None:
    """A second stop does nothing."""
    host = built(tmp_path)
    host.start()

    assert [] == host.stop()
    assert [] == host.stop()


def test_an_agent_that_cannot_be_built_lets_go_of_its_volumes(tmp_path: Path) -> None:
    """If the address is taken, the volumes are free for the next agent."""
    first = built(tmp_path / "first")
    with pytest.raises(RefusedError) as raised:
        built(tmp_path / "second", listen=first.address)

    assert Code.INVALID_CONFIG is raised.value.code
    assert [] == built(tmp_path / "second").stop()
    assert [] == first.stop()


def test_copies_give_way_to_clients_as_the_scans_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their pace comes from the scans' pace control, which measures client latencies, with the
    configured floor.
    """
    floors: list[int] = []
    real = ScanManager.shared_pace

    def heard(self: ScanManager, floor_bytes_per_s: int) -> SharedPace:
        floors.append(floor_bytes_per_s)
        return real(self, floor_bytes_per_s)

    monkeypatch.setattr(ScanManager, "shared_pace", heard)

    host = built(tmp_path)

    assert [TaskConfig().copy_floor_bytes_per_s] == floors
    assert [] == host.stop()


def test_created_replica_shows_in_status_and_waits_in_the_outbox(tmp_path: Path) -> None:
    """The replica stays in the outbox until the SCM has received it."""
    host = built(tmp_path)

    host.store.create_container(ContainerId(7))

    assert {"OPEN": 1} == dict(host.observer.status().containers_by_state)
    assert [7] == host.outboxes.boxes[0].pop_changed(10)
    assert [] == host.stop()
