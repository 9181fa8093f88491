"""Commands that ask several datanodes ask a busy one again, and report the others' answers."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agent.cli.change import volume_commands
from agent.cli.evidence import diagnose
from agent.cli.inspect import replica_commands
from suture.errors import Code, UnavailableError
from suture.terminal.datanode_queries import query_all
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2

NODES = ("dn1", "dn2", "dn3")
INFO = scm_pb2.ContainerInfo(
    container_id=1,
    replicas=[
        scm_pb2.ContainerInfoReplica(datanode=container_pb2.DatanodeEndpoint(datanode_id=name))
        for name in NODES
    ],
)


class BusyOnce:
    """A cluster whose datanode dn2 fails once, at whatever call."""

    def __init__(self, code: Code) -> None:
        self.failures = [UnavailableError(code, "too many calls")]
        self.scm = SimpleNamespace(
            list_container_infos=lambda _request: scm_pb2.ListContainerInfosResponse(
                containers=[INFO]
            )
        )

    def peer(self, datanode: Any) -> Any:
        """Return a datanode that answers each call."""

        def answer(*_args: object) -> Any:
            if datanode.datanode_id == "dn2" and self.failures:
                raise self.failures.pop()
            return []

        def statuses(*_args: object) -> datanode_pb2.StatusResponse:
            answer()
            volume = datanode_pb2.VolumeStatus(volume_id="volume")
            return datanode_pb2.StatusResponse(volumes=[volume])

        return SimpleNamespace(
            **dict.fromkeys(("tree", "findings", "history"), answer),
            **dict.fromkeys(("status", "control_volume"), statuses),
        )


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the pauses."""
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    monkeypatch.setattr(replica_commands, "container_info", lambda _client, _number: INFO)
    monkeypatch.setattr(diagnose, "outcomes_in", lambda _client, _number: [])
    history: Any = {"history": lambda judged: {"of": judged.peer.history(1)}}
    monkeypatch.setattr(diagnose, "QUESTIONS", history)


def queried(client: Any) -> list[str]:
    """Query all datanodes concurrently; return the errors."""
    nodes = [(name, f"{name}.example:1") for name in NODES]
    return [answer.error for answer in query_all(client, nodes, lambda peer: peer.status())]


def trees(client: Any) -> list[str]:
    """Read the trees of all replicas; return the errors."""
    return [replica.error for replica in replica_commands.replicas_of(client, 1, None)]


def findings(client: Any) -> list[str]:
    """Read the findings of all replicas; return the errors."""
    found = [replica_commands.findings_of(client, replica, 1) for replica in INFO.replicas]
    return [one if isinstance(one, str) else "" for one in found]


def evidence(client: Any) -> list[str]:
    """Collect the evidence about a container; return the errors."""
    number: Any = 1
    return [str(document.get("error", "")) for _, document in diagnose.evidence(client, number)]


COMMANDS: dict[str, Callable[[Any], list[str]]] = {
    "status": queried,
    "tree": trees,
    "explain": findings,
    "diagnose": evidence,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_busy_datanode_is_asked_again(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints once what it waits for."""
    assert not any(COMMANDS[command](BusyOnce(Code.BUSY)))
    assert 1 == capsys.readouterr().err.count("waiting for dn2: too many calls")


@pytest.mark.parametrize("command", COMMANDS)
def test_datanode_that_is_away_is_reported_at_once(command: str) -> None:
    """That it is away is what these commands show."""
    assert 1 == sum(map(bool, COMMANDS[command](BusyOnce(Code.UNAVAILABLE))))


def test_volume_of_a_busy_datanode_is_steered() -> None:
    """The datanode refused the call, and has changed nothing."""
    client: Any = BusyOnce(Code.BUSY)
    place = volume_commands.VolumeRef("dn2", "dn2.example:1", "volume")

    volumes = volume_commands.control_volume(client, place, "RETIRING")

    assert ["volume"] == [volume.volume_id for volume in volumes]


@pytest.mark.parametrize("code", [Code.BUSY, Code.UNAVAILABLE])
def test_retirement_is_watched_over_a_restart_of_the_datanode(code: Code) -> None:
    """A restart does not interrupt the retirement, so neither its display."""
    client: Any = BusyOnce(code)
    place = volume_commands.VolumeRef("dn2", "dn2.example:1", "volume")

    assert "volume" == volume_commands.fetch_volume_status(client, place).volume_id
