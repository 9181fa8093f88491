"""Calls to a secure SCM, with tickets of a real KDC and Kerberos' library on both sides."""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.store.volumes.op_state_file import NodeState
from ozone.clients.connection import parse_addresses
from ozone.clients.kerberos import KerberosIdentity
from ozone.clients.messages import ScmRequestType
from ozone.clients.sasl import ProtectionLevel
from ozone.clients.scm import OzoneScmClient, ScmClientOptions, request
from ozone.scm_link import messages, reports
from ozone.scm_link.protocol import DatanodeProtocol
from ozone.scm_link.reports import DatanodeInfo
from suture.errors import Code, RefusedError, UnavailableError
from tests.support.ozone.kerberos import REALM, SCM, Kdc, kdc_in, kerberized
from tests.support.ozone.recorded_scm import RecordedScm, recorded_scm
from tests.support.ozone.standin_scm import standin_scm

QUICK = ScmClientOptions(timeout_s=10.0, patience_s=1.0, pause_s=0.01)
ADMIN = f"admin@{REALM}"
PLAIN, INTEGRITY, PRIVACY = 1, 2, 4
ME = DatanodeInfo(
    datanode_id="f1111111-2222-3333-8444-555555555555",
    host="host7",
    port=9859,
    replication_port=9886,
    rack="/rack",
    version="1",
    started_at_ms=5,
    layout_version=10,
    reserve_bytes=100,
)
KEYS = ("KRB5_CONFIG", "KRB5CCNAME", "KRB5RCACHENAME")


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """A KDC with the SCM's principal and one of a user."""
    with kdc_in(tmp_path_factory.mktemp("kdc")) as running:
        former = {key: os.environ.get(key) for key in KEYS}
        os.environ.update({key: running.environment[key] for key in KEYS})
        running.keytab(SCM)
        running.keytab(ADMIN)
        try:
            yield running
        finally:
            for key, value in former.items():
                os.environ.pop(key)
                if value is not None:
                    os.environ[key] = value


@pytest.fixture
def scm() -> Iterator[RecordedScm]:
    """The SCM behind the secure port."""
    with recorded_scm() as server:
        yield server


def admin(kdc: Kdc, server: str = SCM, **more: object) -> KerberosIdentity:
    """Return the identity of the user, from a keytab."""
    keytab = kdc.place / "admin.keytab"
    return KerberosIdentity(server, ADMIN, keytab, **more)  # type: ignore[arg-type]


def asked(address: str, identity: KerberosIdentity) -> dict[int, int]:
    """Ask for the replicas of many containers at once: more bytes than one message may have."""
    client = OzoneScmClient(parse_addresses(address), identity, QUICK)
    with closing(client):
        containers = [1, 2, 3, 4] * 100
        answers = client.call_each(
            containers, lambda key: request(ScmRequestType.GET_REPLICAS, container_id=key)
        )
        return {key: len(answer.get_replicas.replicas) for key, answer in answers}


@pytest.mark.parametrize("level", [PLAIN, INTEGRITY, PRIVACY])
def test_scm_answers_at_each_protection_level(kdc: Kdc, scm: RecordedScm, level: int) -> None:
    """The server knows the caller by its ticket, and the frames inside are the same."""
    with kerberized(scm.address, kdc.place / "scm-localhost.keytab", level) as port:
        assert {1: 3, 2: 3, 3: 5, 4: 5} == asked(port.address, admin(kdc))

    assert [ADMIN] == port.callers
    assert [ADMIN] == scm.users
    assert bool(port.tokens) is (level != PLAIN)


@pytest.mark.parametrize("level", [INTEGRITY, PRIVACY])
def test_message_above_64_kib_arrives_in_parts(kdc: Kdc, level: int) -> None:
    """The server refuses a token of more than 64 KiB; a full report of a datanode is larger."""
    replicas = [
        messages.REPLICA(container_id=key, state=4, origin=ME.datanode_id) for key in range(1, 5001)
    ]
    message = messages.HEARTBEAT(
        details=reports.details(ME, "127.0.0.1", NodeState()),
        containers=messages.REPLICAS(replicas=replicas),
    )
    with (
        standin_scm(knows_all=True) as scm,
        kerberized(scm.address, kdc.place / "scm-localhost.keytab", level) as port,
    ):
        (address,) = parse_addresses(port.address)
        with closing(DatanodeProtocol(address, admin(kdc))) as calls:
            calls.heartbeat(message)

        (beat,) = scm.beats
    assert message.ByteSize() > 200_000
    assert 5000 == len(beat.containerReport.reports)
    assert 4 <= len([token for token in port.tokens if len(token) > 1000])


def test_tickets_of_the_users_cache_are_used(
    kdc: Kdc, scm: RecordedScm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After kinit, no option names a principal or a keytab."""
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'cache'}")
    kdc.environment["KRB5CCNAME"] = f"FILE:{tmp_path / 'cache'}"
    kdc.run("kinit", "-k", "-t", str(kdc.place / "admin.keytab"), ADMIN)
    with kerberized(scm.address, kdc.place / "scm-localhost.keytab", PRIVACY) as port:
        asked(port.address, KerberosIdentity(SCM))

    assert [ADMIN] == port.callers


def test_user_without_a_ticket_is_told_what_to_do(
    kdc: Kdc, scm: RecordedScm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The cache does not exist."""
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'none'}")
    with (
        kerberized(scm.address, kdc.place / "scm-localhost.keytab", PRIVACY) as port,
        pytest.raises(
            RefusedError, match="cannot authenticate: No Kerberos credentials"
        ) as refused,
    ):
        asked(port.address, KerberosIdentity(SCM))

    assert "run kinit" in refused.value.hint
    assert Code.UNAUTHENTICATED is refused.value.code


def test_server_with_another_principal_is_refused(kdc: Kdc, scm: RecordedScm) -> None:
    """It is a valid member of the realm, but not the SCM."""
    keytab = kdc.keytab(f"om/localhost@{REALM}")
    with (
        kerberized(scm.address, keytab, PRIVACY, name=("om", "localhost")) as port,
        pytest.raises(RefusedError, match="calls itself om/localhost, expected scm/localhost"),
    ):
        asked(port.address, admin(kdc))

    assert [] == scm.users


def test_server_without_the_key_of_its_principal_is_not_believed(
    kdc: Kdc, scm: RecordedScm
) -> None:
    """It calls itself the SCM, but cannot open the ticket for it."""
    keytab = kdc.keytab(f"evil/localhost@{REALM}")
    with (
        kerberized(scm.address, keytab, PLAIN) as port,
        pytest.raises(RefusedError, match="cannot authenticate: The ticket isn't for us"),
    ):
        asked(port.address, admin(kdc))

    assert [] == scm.users


def test_changed_answer_is_refused(kdc: Kdc, scm: RecordedScm) -> None:
    """One bit of a token differs."""
    with (
        kerberized(scm.address, kdc.place / "scm-localhost.keytab", INTEGRITY, spoils=True) as port,
        pytest.raises(RefusedError, match="cannot authenticate"),
    ):
        asked(port.address, admin(kdc))


def test_required_privacy_is_not_given_up(kdc: Kdc, scm: RecordedScm) -> None:
    """The server offers less than `hadoop.rpc.protection` here requires."""
    with (
        kerberized(scm.address, kdc.place / "scm-localhost.keytab", PLAIN | INTEGRITY) as port,
        pytest.raises(RefusedError, match="privacy is required"),
    ):
        asked(port.address, admin(kdc, level_min=ProtectionLevel.PRIVACY))

    assert [] == scm.users


def test_host_in_a_principal_is_that_of_the_server(kdc: Kdc, scm: RecordedScm) -> None:
    """As `_HOST` in hdds.scm.kerberos.principal."""
    with kerberized(scm.address, kdc.place / "scm-localhost.keytab", PRIVACY) as port:
        assert asked(port.address, admin(kdc, f"scm/_HOST@{REALM}"))


def test_silent_kdc_is_unavailable(
    kdc: Kdc, scm: RecordedScm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An agent tries again later; a ticket that the KDC refuses would be refused again."""
    conf = tmp_path / "krb5.conf"
    text = (kdc.place / "krb5.conf").read_text()
    conf.write_text(text.replace("kdc = 127.0.0.1:", "kdc = 127.0.0.1:1\n  # "))
    monkeypatch.setenv("KRB5_CONFIG", str(conf))
    identity = KerberosIdentity(SCM, f"nobody@{REALM}", kdc.keytab(f"nobody@{REALM}"))
    begun_s = time.monotonic()
    with (
        kerberized(scm.address, kdc.place / "scm-localhost.keytab", PRIVACY) as port,
        pytest.raises(UnavailableError, match="KDC"),
    ):
        asked(port.address, identity)

    assert time.monotonic() - begun_s < 30
