"""The server for Ozone's peers as a part of an agent: where it listens, starts and stops."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.config.loading import load
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.host import AgentProcess
from ozone.wiring import server_factories
from suture.errors import Code, RefusedError
from suture.runtime.sd_notify import SystemdNotifier
from suture.wire.clients.scm import ScmClient

SEND = "/hadoop.hdds.datanode.XceiverClientProtocolService/send"
NOWHERE = "127.0.0.1:1"  # nobody listens there
WHO = DatanodeIdentity("11111111-2222-3333-4444-555555555555", "CID-1", version="1", boot_id=1)
ECHO = bytes.fromhex("08161801220178d201021003")  # 3 bytes, for container 1


def configured(folder: Path, listen: str = "127.0.0.1:0", more: str = "") -> Path:
    """Write the config of an agent that serves Ozone's peers."""
    volume = folder / "volume"
    volume.mkdir(parents=True, exist_ok=True)
    config = folder / "agent.toml"
    config.write_text(
        f"""[node]
listen = "127.0.0.1:0"
scm = "{NOWHERE}"
[observe]
listen = "127.0.0.1:0"
[storage]
volumes = ["{volume}"]
[ozone]
listen = "{listen}"
{more}
"""
    )
    return config


def built(folder: Path) -> AgentProcess:
    """Return an agent that serves Ozone's peers, whose control plane is away."""
    config = load(configured(folder))
    return AgentProcess(
        config,
        WHO,
        [ScmClient(NOWHERE)],
        SystemdNotifier(),
        server_factories=server_factories(config.ozone),
    )


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentProcess]:
    """Such an agent, started."""
    made = built(tmp_path)
    made.start()
    yield made
    made.stop()


def asked(address: str, *requests: bytes) -> list[bytes]:
    """Return the answers of a conversation."""
    with grpc.insecure_channel(address) as channel:
        send: Any = channel.stream_stream(SEND)
        return list(send(iter(requests), timeout=20))


def test_ozone_server_answers_an_echo_while_the_agent_runs(host: AgentProcess) -> None:
    """The request is an echo of three bytes, as Ozone's clients send it, written out by hand."""
    (address,) = host.protocol_addresses

    (answer,) = asked(address, ECHO)

    assert bytes.fromhex("08161801ba01050a03000000") == answer


def test_ozone_server_frees_its_port_when_the_agent_stops(tmp_path: Path) -> None:
    """The port is free after a stop, before a start and after one."""
    assert [] == built(tmp_path).stop()
    host = built(tmp_path)
    host.start()
    (address,) = host.protocol_addresses
    assert asked(address, ECHO)

    assert [] == host.stop()

    with pytest.raises(grpc.RpcError) as caught:
        asked(address, ECHO)
    assert grpc.StatusCode.UNAVAILABLE is caught.value.code()
    again = AgentProcess(
        load(configured(tmp_path, address)),
        WHO,
        [ScmClient(NOWHERE)],
        SystemdNotifier(),
        server_factories=server_factories(load(configured(tmp_path, address)).ozone),
    )
    assert [address] == again.protocol_addresses
    assert [] == again.stop()


def test_an_address_in_use_starts_nothing(tmp_path: Path, host: AgentProcess) -> None:
    """The error has the address, and the volumes are released."""
    (address,) = host.protocol_addresses
    config = load(configured(tmp_path / "second", address))

    with pytest.raises(RefusedError) as caught:
        AgentProcess(
            config,
            WHO,
            [ScmClient(NOWHERE)],
            SystemdNotifier(),
            server_factories=server_factories(config.ozone),
        )

    assert Code.INVALID_CONFIG is caught.value.code
    assert address in str(caught.value)
    free = load(configured(tmp_path / "second"))
    assert [] == AgentProcess(free, WHO, [ScmClient(NOWHERE)], SystemdNotifier()).stop()


@pytest.mark.parametrize(
    ("listen", "more", "named"),
    [
        ("0.0.0.0:9862", "", "the network could read"),
        (
            "127.0.0.1:9862",
            '[tls]\ncertificate = "/c.pem"\nkey = "/k.pem"\nca = "/a.pem"',
            "this agent has certificates",
        ),
    ],
)
def test_ozone_listener_with_certificates_is_refused_by_the_config(
    tmp_path: Path, listen: str, more: str, named: str
) -> None:
    """Ozone's protocol is spoken without TLS and tokens, so an agent with certificates cannot
    offer it.
    """
    with pytest.raises(RefusedError, match=named) as caught:
        load(configured(tmp_path, listen, more))

    assert "ozone.listen" in str(caught.value)
