"""The certificate of a datanode: requested as Ozone's CA demands, stored, renewed, and its CA
followed.

The CA here is made with the library cryptography, from a request that it verifies.
"""

import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtensionOID, NameOID

from ozone.security.certificates import CHECK_S, DatanodeCertificate
from ozone.security.scm_security import ScmSecurity
from suture.errors import Code, UnavailableError
from suture.wire.security.tls import Certificates
from tests.support.heard import logged

DATANODE = UUID("f1111111-2222-3333-8444-555555555555")
YEAR = timedelta(days=365)


def pem(certificate: x509.Certificate) -> str:
    """Return the text of a certificate."""
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


@dataclass
class Ca:
    """A CA that signs for `lifetime`; `age` ago. `rotate` makes a new root."""

    lifetime: timedelta = YEAR
    age: timedelta = timedelta(0)
    is_silent: bool = False
    requests: list[x509.CertificateSigningRequest] = field(default_factory=list)
    datanodes: list[Any] = field(default_factory=list)
    roots: list[x509.Certificate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rotate()

    def rotate(self, *, keeps_old: bool = False) -> None:
        """Make a new root."""
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
        name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"root {len(self.requests)} {id(self._key)}")]
        )
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        root = self._signed(name, name, self._key.public_key(), YEAR).add_extension(
            constraints, critical=True
        )
        made = root.sign(self._key, hashes.SHA256())
        self.roots = [*self.roots, made] if keeps_old else [made]

    def _signed(
        self, subject: x509.Name, issuer: x509.Name, key: Any, lifetime: timedelta
    ) -> x509.CertificateBuilder:
        begins = datetime.now(UTC) - self.age
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(begins + lifetime)
        )

    def ca_certificates(self) -> list[str]:
        """Return the roots."""
        self._answer()
        return [pem(root) for root in self.roots]

    def certify(self, datanode: Any, csr: str) -> str:
        """Sign a request."""
        self._answer()
        request = x509.load_pem_x509_csr(csr.encode())
        assert request.is_signature_valid
        self.requests.append(request)
        self.datanodes.append(datanode)
        issuer = self.roots[-1].subject
        built = self._signed(request.subject, issuer, request.public_key(), self.lifetime)
        return pem(built.sign(self._key, hashes.SHA256())) + pem(self.roots[-1])

    def _answer(self) -> None:
        if self.is_silent:
            raise UnavailableError(Code.UNAVAILABLE, "no SCM answered")


@dataclass
class Clock:
    """The monotonic time."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def certificate(ca: Ca, folder: Path, clock: Clock | None = None) -> DatanodeCertificate:
    """Return the certificate of a datanode in a folder."""
    return DatanodeCertificate(
        cast(ScmSecurity, ca),
        folder,
        DATANODE,
        host="dn7.example.com",
        ip_addresses=["192.0.2.7", "2001:db8::7"],
        monotonic_s=clock or Clock(),
    )


def test_request_has_what_ozones_ca_demands_and_no_more(tmp_path: Path) -> None:
    """RSA 2048, SHA-256, the subject's form, four usages, and the names that others dial."""
    ca = Ca()

    certificate(ca, tmp_path / "tls").obtain()

    (request,) = ca.requests
    key = request.public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    assert (2048, "sha256") == (key.key_size, cast(Any, request.signature_hash_algorithm).name)
    assert "O=null,OU=null,CN=suture@dn7.example.com" == request.subject.rfc4514_string()
    usage = request.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert (True, True, True, True, False, False, False) == (
        usage.value.digital_signature,
        usage.value.key_encipherment,
        usage.value.data_encipherment,
        usage.value.key_agreement,
        usage.value.content_commitment,
        usage.value.key_cert_sign,
        usage.value.crl_sign,
    )
    names = request.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert not names.critical
    assert ["dn7.example.com"] == names.value.get_values_for_type(x509.DNSName)
    assert ["192.0.2.7", "2001:db8::7"] == [
        str(one) for one in names.value.get_values_for_type(x509.IPAddress)
    ]
    assert {ExtensionOID.KEY_USAGE, ExtensionOID.SUBJECT_ALTERNATIVE_NAME} == {
        one.oid for one in request.extensions
    }
    (datanode,) = ca.datanodes
    assert (str(DATANODE), "192.0.2.7", "dn7.example.com") == (
        datanode.uuid,
        datanode.ip_address,
        datanode.host_name,
    )


def test_key_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """Also below a folder that others may read."""
    made = certificate(Ca(), tmp_path)

    made.obtain()

    assert 0o600 == stat.S_IMODE(made.files.key.stat().st_mode)
    assert Certificates(made.files).material.certificate


def test_valid_files_are_used_again_without_the_scm(tmp_path: Path) -> None:
    """A restart while no SCM answers."""
    ca = Ca()
    certificate(ca, tmp_path).obtain()
    ca.is_silent = True

    certificate(ca, tmp_path).obtain()

    assert 1 == len(ca.requests)


@pytest.mark.parametrize("name", ["certificate.pem", "key.pem", "ca.pem"])
@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_damaged_files_are_replaced(tmp_path: Path, name: str, content: bytes | None) -> None:
    """As after a crash between two of them."""
    ca = Ca()
    made = certificate(ca, tmp_path)
    made.obtain()
    path = tmp_path / name
    path.unlink() if content is None else path.write_bytes(content)

    made.obtain()

    assert 2 == len(ca.requests)
    assert Certificates(made.files).material.key


def test_expired_certificate_without_an_scm_is_an_error(tmp_path: Path) -> None:
    """Nothing could be served with it."""
    ca = Ca(age=timedelta(days=400))
    certificate(ca, tmp_path).obtain()
    ca.is_silent = True

    with pytest.raises(UnavailableError):
        certificate(ca, tmp_path).obtain()


@pytest.mark.parametrize(
    ("lifetime", "age", "is_due"),
    [
        (YEAR, timedelta(days=336), False),
        (YEAR, timedelta(days=338), True),
        (timedelta(days=3), timedelta(days=1, hours=23), False),
        (timedelta(days=3), timedelta(days=2, hours=1), True),
    ],
)
def test_certificate_is_renewed_before_its_end(
    tmp_path: Path, lifetime: timedelta, age: timedelta, is_due: bool
) -> None:
    """28 days before it, as Ozone does, and a third of a short lifetime."""
    ca, clock = Ca(lifetime=lifetime, age=age), Clock()
    made = certificate(ca, tmp_path, clock)
    made.obtain()
    former = made.files.certificate.read_bytes()
    assert 1 == len(ca.requests)

    made.renew_if_due()
    assert 1 == len(ca.requests), "checked at intervals"
    clock.now_s += CHECK_S
    made.renew_if_due()

    assert is_due is (len(ca.requests) == 2)
    assert is_due is (former != made.files.certificate.read_bytes())


def test_new_root_is_trusted_before_it_signs(tmp_path: Path) -> None:
    """The CA lists both during a rotation. The own certificate is renewed when its issuer is no
    longer listed."""
    ca, clock = Ca(), Clock()
    made = certificate(ca, tmp_path, clock)
    made.obtain()

    ca.rotate(keeps_old=True)
    clock.now_s += CHECK_S
    made.renew_if_due()
    trusted = x509.load_pem_x509_certificates(made.files.ca.read_bytes())
    assert (2, 1) == (len(trusted), len(ca.requests))

    ca.roots = ca.roots[1:]
    clock.now_s += CHECK_S
    made.renew_if_due()
    own = x509.load_pem_x509_certificates(made.files.certificate.read_bytes())[0]
    assert 2 == len(ca.requests)
    own.verify_directly_issued_by(ca.roots[0])


def test_failed_renewal_is_logged_and_tried_again(tmp_path: Path) -> None:
    """The present certificate remains in use."""
    ca, clock = Ca(age=timedelta(days=350)), Clock()
    made = certificate(ca, tmp_path, clock)
    made.obtain()
    ca.is_silent = True
    clock.now_s += CHECK_S
    with logged() as lines:
        made.renew_if_due()
    assert ["ozone_certificate_renewal_failed"] == [line["event"] for line in lines]

    ca.is_silent = False
    clock.now_s += CHECK_S
    made.renew_if_due()

    assert 2 == len(ca.requests)
