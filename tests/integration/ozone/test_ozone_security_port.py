"""Calls to the SCM's security port, answered with recorded bytes of a secure Ozone 2.2.0."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography import x509

from ozone.clients.authentication import HadoopIdentity
from ozone.clients.connection import parse_addresses
from ozone.security.scm_security import ScmSecurity
from suture.errors import RefusedError, UnavailableError
from tests.support.ozone.hadoop_server import (
    GREETING,
    HadoopServer,
    call_of,
    exactly,
    failure,
    frame_of,
    framed,
    renumbered,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "ozone" / "scm-security.json"
RECORDED: list[dict[str, str]] = json.loads(GOLDEN.read_text())
NOT_LEADER = "org.apache.hadoop.hdds.ratis.ServerNotLeaderException"


@dataclass
class SecurityPort(HadoopServer):
    """A port that has an answer for each recorded request."""

    answers: dict[bytes, bytes] = field(
        default_factory=lambda: {
            bytes.fromhex(one["request"]): bytes.fromhex(one["answer"]) for one in RECORDED[:4]
        }
    )
    calls: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listen()

    def serve(self, opened: socket.socket, stream: Any) -> None:
        """Answer one call."""
        assert exactly(stream, len(GREETING)) == GREETING
        frame_of(stream)  # the context
        header, call = call_of(frame_of(stream))
        number = header[3]
        assert isinstance(number, int)
        self.calls.append(call)
        opened.sendall(framed(renumbered(self.answers[call], number >> 1)))


@contextmanager
def security_port(**wishes: Any) -> Iterator[SecurityPort]:
    """Run one."""
    port = SecurityPort(**wishes)
    try:
        yield port
    finally:
        port.close()


def service(*ports: SecurityPort) -> ScmSecurity:
    """Return the client of several SCMs."""
    addresses = parse_addresses(",".join(port.address for port in ports))
    return ScmSecurity(addresses, HadoopIdentity("dn"))


def follower() -> dict[bytes, bytes]:
    """Return the answers of an SCM that does not lead."""
    refusal = failure(0, NOT_LEADER, "Server:x is not the leader")
    return {bytes.fromhex(one["request"]): refusal for one in RECORDED}


def test_current_key_and_named_key_are_the_same() -> None:
    """The requests are those that a real SCM understood, byte for byte."""
    with security_port() as scm:
        current = service(scm).current_key()
        named = service(scm).key(current.key_id)

    assert current == named
    assert ("HmacSHA256", 32) == (current.algorithm, len(current.key))
    assert 9 * 86_400_000 == current.expires_ms - current.created_ms


def test_unknown_key_is_none() -> None:
    """The SCM answers without a key."""
    with security_port() as scm:
        assert service(scm).key(UUID(int=5)) is None


def test_certificates_of_root_and_scm_are_returned() -> None:
    """Both are valid PEM, and the second one was signed by the first."""
    with security_port() as scm:
        certificates = service(scm).ca_certificates()

    found = [x509.load_pem_x509_certificate(text.encode()) for text in certificates]
    roots = [one for one in found if one.subject == one.issuer]
    assert (2, 1) == (len(found), len(roots))
    for one in found:
        one.verify_directly_issued_by(roots[0])


def test_follower_sends_the_caller_to_the_leader() -> None:
    """The keys and certificates come from whichever SCM leads."""
    with security_port(answers=follower()) as other, security_port() as leader:
        assert service(other, leader).current_key()
        assert len(other.calls) == len(leader.calls) == 1


def test_no_leader_is_unavailable_with_each_reason() -> None:
    """A later call may succeed."""
    with (
        security_port(answers=follower()) as other,
        pytest.raises(UnavailableError, match=r"no SCM answered on its security port: .*not the l"),
    ):
        service(other).current_key()


def test_forbidden_call_is_refused() -> None:
    """The exception of the SCM is in the error; another SCM would say the same."""
    refusal = failure(0, "org.apache.hadoop.security.AccessControlException", "not dn")
    answers = {bytes.fromhex(one["request"]): refusal for one in RECORDED}
    with (
        security_port(answers=answers) as scm,
        pytest.raises(RefusedError, match="AccessControlException: not dn"),
    ):
        service(scm).current_key()
