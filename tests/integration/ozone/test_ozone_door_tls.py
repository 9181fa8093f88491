"""The two servers of an agent in a secure cluster: TLS for tokens, mutual TLS for containers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from merkle.checksum import Algorithm
from ozone.clients.datanode_messages import XCEIVER
from ozone.datanode_server.grpc_server import bound_server, built_service
from ozone.datanode_server.xceiver_service import accept_any
from ozone.transfer.messages import SERVICE
from ozone.wiring import archives
from suture.wire.security.caller import Role
from suture.wire.security.tls import Certificates, Security
from tests.support.authority import Authority
from tests.support.ozone.ozone_agent import DOWNLOAD, SEND, UPLOAD, Actions, OzoneAgent
from tests.support.ozone.ozone_wire import COMMANDS, WIRE
from tests.support.storage.stored_replica import CONTAINER, DATANODE

ECHO = {"cmdType": COMMANDS["echo"], "containerID": 1, "datanodeUuid": DATANODE}


@dataclass
class Doors:
    """The addresses of both servers, their CA, and the audit log."""

    client: str
    replication: str
    authority: Authority
    audit: Actions

    def channel(self, address: str, name: str = "") -> grpc.Channel:
        """Open a channel; with the certificate of `name`, if there is one."""
        ca = self.authority.ca.read_bytes()
        if not name:
            return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca))
        files = self.authority.issue(name, Role.PEER)
        own = files.key.read_bytes(), files.certificate.read_bytes()
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, *own))


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Doors]:
    """Both servers of one store, as `ozone.wiring` builds them; one container is closed."""
    authority = Authority(tmp_path / "ca")
    certificates = Certificates(authority.issue("dn1", Role.PEER))
    agent = OzoneAgent(tmp_path / "volume", algorithm=Algorithm.CRC32C)
    agent.replica.create()
    inside = agent.inside(Algorithm.CRC32C)
    made = [
        bound_server(
            inside,
            "127.0.0.1:0",
            services,
            Security(certificates, asks_certificate=asks_certificate),
        )
        for services, asks_certificate in (
            ({XCEIVER: built_service(inside, accept_any)}, False),
            ({SERVICE: archives(inside)}, True),
        )
    ]
    for door in made:
        door.server.start()
    try:
        yield Doors(made[0].address, made[1].address, authority, agent.audit)
    finally:
        for door in made:
            door.server.stop(0).wait()
        agent.close()


def echoed(channel: grpc.Channel) -> Any:
    """Return the answer to an Echo."""
    request = WIRE["Request"](echo={"payload": b"x"}, **ECHO).SerializeToString()
    call: Any = channel.stream_stream(SEND)
    (answer,) = call(iter([request]), timeout=20)
    return WIRE["Response"].FromString(answer)


def downloaded(channel: grpc.Channel) -> int:
    """Return the bytes of a container's archive."""
    wish = WIRE["Wish"](containerID=CONTAINER, readOffset=0).SerializeToString()
    call: Any = channel.unary_stream(DOWNLOAD)
    return sum(len(WIRE["Part"].FromString(part).data) for part in call(wish, timeout=20))


def test_clients_need_no_certificate_but_tls(doors: Doors) -> None:
    """They prove themselves by tokens."""
    with doors.channel(doors.client) as channel:
        assert 1 == echoed(channel).result
    with grpc.insecure_channel(doors.client) as channel, pytest.raises(grpc.RpcError):
        echoed(channel)


@pytest.mark.parametrize("has_tls", [False, True])
def test_containers_are_not_sent_without_a_certificate(doors: Doors, has_tls: bool) -> None:
    """Neither in plaintext nor over TLS."""
    channel = (
        doors.channel(doors.replication) if has_tls else grpc.insecure_channel(doors.replication)
    )
    with channel, pytest.raises(grpc.RpcError) as refused:
        downloaded(channel)

    assert grpc.StatusCode.UNAVAILABLE is refused.value.code()


def test_containers_are_sent_to_a_datanode_of_the_cluster(doors: Doors) -> None:
    """Its certificate is from the same CA."""
    with doors.channel(doors.replication, "dn2") as channel:
        assert downloaded(channel) > 100_000


def test_certificate_of_another_ca_is_refused(doors: Doors, tmp_path: Path) -> None:
    """It has the same name."""
    files = Authority(tmp_path / "other").issue("dn2", Role.PEER)
    credentials = grpc.ssl_channel_credentials(
        doors.authority.ca.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    with (
        grpc.secure_channel(doors.replication, credentials) as channel,
        pytest.raises(grpc.RpcError),
    ):
        downloaded(channel)


def test_containers_are_not_sent_where_clients_ask(doors: Doors) -> None:
    """That port asks nobody for a certificate, so it has no such service; nor the other one the
    service of clients."""
    with doors.channel(doors.client) as channel, pytest.raises(grpc.RpcError) as refused:
        downloaded(channel)
    assert grpc.StatusCode.UNIMPLEMENTED is refused.value.code()
    with (
        doors.channel(doors.replication, "dn2") as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        echoed(channel)
    assert grpc.StatusCode.UNIMPLEMENTED is refused.value.code()


def test_push_is_audited_with_the_name_in_the_certificate(doors: Doors) -> None:
    """Also if it fails."""
    part = WIRE["Upload"](containerID=77, offset=0, data=b"no archive")
    with doors.channel(doors.replication, "dn2") as channel:
        call: Any = channel.stream_unary(UPLOAD)
        with pytest.raises(grpc.RpcError):
            call(iter([part.SerializeToString()]), timeout=20)

    assert [("ImportContainer", "dn2", 77)] == [
        (action, facts["who"], facts["container_id"]) for action, _, facts in doors.audit.lines
    ]
