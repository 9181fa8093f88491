"""A private certificate authority in a directory, for a cluster that has no other authority.

    DIR/ca.pem ca.key        the authority; the key stays with the operator
    DIR/<name>.pem .key      issued certificates

Keys are P-256, never leave their file, and only the owner may read them. If a certificate is issued
again under the same name, it gets a new key and has the same datanode id. The rules are those of
RFC 5280, which the `cryptography` library implements.
"""

import ipaddress
import os
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from suture.config.bounded_read import SETTINGS_BYTES_MAX, read_file_bounded
from suture.errors import Code, RefusedError
from suture.wire.security.caller import Role, identity_of

CA_NAME: Final = "ca"
KEY_MODE: Final = 0o600
CERTIFICATE_MODE: Final = 0o644
DIRECTORY_MODE: Final = 0o700
CLOCKS_DIFFER: Final = timedelta(minutes=5)
SERVING: Final = frozenset({Role.PEER, Role.SCM})
HOST: Final = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*")
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")  # a file name, and a common name


@dataclass(frozen=True, slots=True)
class CertificateInfo:
    """The content of one certificate, for display."""

    name: str
    issuer: str
    roles: tuple[str, ...]
    node_id: str
    hosts: tuple[str, ...]
    is_ca: bool
    begins_at: datetime
    expires_at: datetime
    serial: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class CertificateRequest:
    """A request for a certificate. `hosts` are DNS names and IP addresses."""

    name: str
    roles: Sequence[Role]
    hosts: Sequence[str] = ()
    node_id: str = ""
    days: int = 365


def create_authority(directory: Path, *, name: str, days: int, now: datetime) -> Path:
    """Create a new authority, and return the path of its certificate. Raise RefusedError if the
    directory already has an authority."""
    paths = _paths(directory, CA_NAME)
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    for path in paths:
        if path.exists():
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"cannot create an authority: {path} exists, and a new one would invalidate "
                "all issued certificates",
                hint="name another directory",
            )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    public = key.public_key()
    usage = _usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(paths[1], _key_text(key), KEY_MODE)
    _write(paths[0], certificate.public_bytes(serialization.Encoding.PEM), CERTIFICATE_MODE)
    return paths[0]


def issue(directory: Path, order: CertificateRequest, *, now: datetime) -> tuple[Path, Path]:
    """Create a key and issue a certificate for it. Return the paths of the certificate and of the
    key.

    The certificate of a server must have the names of the hosts to which clients connect. The
    certificate of a datanode has the datanode's id: `order.node_id`, or the id in the previous
    certificate, or a new id. Raise RefusedError if the request is invalid.
    """
    _check(order)
    authority, authority_key = _authority(directory)
    expires_at = now + timedelta(days=order.days)
    if expires_at > authority.not_valid_after_utc:
        raise RefusedError(
            Code.INVALID_CONFIG,
            "cannot issue the certificate: the authority expires on "
            f"{authority.not_valid_after_utc:%Y-%m-%d}",
            hint="give a smaller --days, or create a new authority in another directory",
        )
    paths = _paths(directory, order.name)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, order.name)]))
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(expires_at)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(_purposes(order.roles), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(_names(order, paths[0]))), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
        .sign(authority_key, hashes.SHA256())
    )
    _write(paths[1], _key_text(key), KEY_MODE)
    _write(paths[0], certificate.public_bytes(serialization.Encoding.PEM), CERTIFICATE_MODE)
    return paths


def describe_certificates(path: Path) -> list[CertificateInfo]:
    """Return the content of the certificates in a PEM file, for display. Raise
    RefusedError(INVALID_CONFIG) if the file is invalid."""
    try:
        content = read_file_bounded(path, bytes_max=SETTINGS_BYTES_MAX)
    except OSError as error:
        raise RefusedError(Code.INVALID_CONFIG, f"cannot read {path}: {error.strerror}") from error
    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError as error:
        kind = "a private key, not" if b"PRIVATE KEY" in content else "not"
        raise RefusedError(Code.INVALID_CONFIG, f"{path} is {kind} a certificate in PEM") from error
    return [_certificate_info(certificate) for certificate in found]


def _certificate_info(certificate: x509.Certificate) -> CertificateInfo:
    identity = identity_of(certificate.public_bytes(serialization.Encoding.PEM))
    hosts: list[str] = []
    is_ca = False
    for extension in certificate.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            hosts += extension.value.get_values_for_type(x509.DNSName)
            hosts += [str(ip) for ip in extension.value.get_values_for_type(x509.IPAddress)]
        if isinstance(extension.value, x509.BasicConstraints):
            is_ca = extension.value.ca
    issuers = certificate.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
    return CertificateInfo(
        name=identity.name,
        issuer=str(issuers[0].value) if issuers else "",
        roles=tuple(sorted(role.value for role in identity.roles)),
        node_id=identity.node_id,
        hosts=tuple(hosts),
        is_ca=is_ca,
        begins_at=certificate.not_valid_before_utc,
        expires_at=certificate.not_valid_after_utc,
        serial=f"{certificate.serial_number:x}",
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def _check(order: CertificateRequest) -> None:
    if not NAME.fullmatch(order.name) or order.name == CA_NAME:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"invalid certificate name {order.name!r}",
            hint="expected 1 to 63 letters, digits, '.', '_', '-'; not ca",
        )
    if SERVING & set(order.roles) and not order.hosts:
        raise RefusedError(
            Code.INVALID_CONFIG,
            "cannot issue a certificate with the role peer or scm without the names of its hosts",
            hint="for example --host datanode1.example.org --host 10.0.0.1",
        )
    if order.node_id and Role.PEER not in order.roles:
        raise RefusedError(
            Code.INVALID_CONFIG, "cannot combine --node with these roles: it requires the role peer"
        )


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    certificate_path, key_path = paths = _paths(directory, CA_NAME)
    try:
        contents = [read_file_bounded(path, bytes_max=SETTINGS_BYTES_MAX) for path in paths]
        certificate = x509.load_pem_x509_certificate(contents[0])
        key = serialization.load_pem_private_key(contents[1], password=None)
    except OSError as error:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot read {error.filename}: {error.strerror}",
            hint="suture tls init creates an authority",
        ) from error
    except (ValueError, TypeError) as error:
        raise RefusedError(
            Code.INVALID_CONFIG, f"{certificate_path}, {key_path}: not an authority: {error}"
        ) from error
    is_its_key = (
        isinstance(key, ec.EllipticCurvePrivateKey) and key.public_key() == certificate.public_key()
    )
    if not is_its_key or not isinstance(key, ec.EllipticCurvePrivateKey):
        raise RefusedError(Code.INVALID_CONFIG, f"{key_path} is not the key of {certificate_path}")
    return certificate, key


def _names(order: CertificateRequest, before: Path) -> Iterable[x509.GeneralName]:
    for role in order.roles:
        yield x509.UniformResourceIdentifier(f"suture:role:{role}")
    if Role.PEER in order.roles:
        node_id = order.node_id or _node_of_before(before) or str(uuid.uuid4())
        yield x509.UniformResourceIdentifier(f"suture:node:{node_id}")
    for host in order.hosts:
        try:
            yield x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            yield _dns_name(host)


def _dns_name(host: str) -> x509.DNSName:
    if not HOST.fullmatch(host):
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"invalid host name {host!r}",
            hint="expected the name or IP address that clients connect to, without a port",
        )
    return x509.DNSName(host)


def _node_of_before(path: Path) -> str:
    return describe_certificates(path)[0].node_id if path.exists() else ""


def _purposes(roles: Sequence[Role]) -> x509.ExtendedKeyUsage:
    """Return the extended key usage of a certificate. Only the roles of servers include the usage
    for servers."""
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if SERVING & set(roles):
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return x509.ExtendedKeyUsage(purposes)


def _usage(**wanted: bool) -> x509.KeyUsage:
    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: wanted.get(name, False) for name in names})


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _paths(directory: Path, name: str) -> tuple[Path, Path]:
    return directory / f"{name}.pem", directory / f"{name}.key"


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file atomically, so that other processes never read a partial file. The file has
    the mode `mode` from its creation, so that only the owner can ever read a key."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)  # regardless of the umask
        file.write(content)
        file.flush()
        os.fsync(fd)
    temporary.replace(path)


def now() -> datetime:
    """Return the current time in UTC, in whole seconds, as certificates require."""
    return datetime.now(UTC).replace(microsecond=0)
