"""Requests, stores and renews the certificate of a datanode, which the CA of the SCM issues.

    key.pem           the private key, mode 600
    certificate.pem   the certificate, and its issuers
    ca.pem            the trusted certificates: that of the root CA and that of each SCM

Servers and clients read the files again when they change (suture.wire.security.tls). A certificate
is renewed when a third of its lifetime is left, at most 28 days (`hdds.x509.renew.grace.duration`).
At each check, the agent requests the certificates of the CA, so that it trusts a new root CA
without a restart.
"""

import ipaddress
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from ozone.messages import security_pb2
from ozone.security.scm_security import ScmSecurity
from ozone.security.tokens import uuid_message
from suture.errors import RefusedError, SutureError
from suture.runtime.durable import replace_file, stage
from suture.wire.security.tls import TlsFiles, read_files

KEY_BITS: Final = 2048  # hdds.key.len
KEY_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
RENEWAL_MAX: Final = timedelta(days=28)
RENEWAL_SHARE: Final = 3  # renew when a third of the lifetime is left
CHECK_S: Final = 600.0
PLACEHOLDER: Final = "null"  # the CA replaces it by the ids of the SCM and the cluster

log = structlog.get_logger()


@dataclass(eq=False)
class DatanodeCertificate:
    """The files with the certificate of one datanode. Thread-safe.

    `host` and `ip_addresses` are the host name and the addresses under which other datanodes
    connect.
    """

    service: ScmSecurity
    directory: Path
    datanode_id: UUID
    _: KW_ONLY
    host: str
    ip_addresses: Sequence[str]
    monotonic_s: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.files = TlsFiles(
            self.directory / "certificate.pem",
            self.directory / "key.pem",
            self.directory / "ca.pem",
        )
        self._check_at_s = 0.0
        self._lock = threading.Lock()

    def obtain(self) -> None:
        """Use the stored certificate if its files are valid.

        Otherwise, request a certificate from the CA. Raise SutureError if there are no valid files
        and the CA does not issue a certificate.
        """
        with self._lock:
            self.directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            if self._is_usable():
                with suppress(SutureError):  # the present files are valid until the next check
                    self._refresh()
            else:
                self._request()
            self._check_at_s = self.monotonic_s() + CHECK_S

    def renew_if_due(self) -> None:
        """Store new certificates of the CA, and renew the certificate of the datanode if it is due.

        Do nothing if the last check was less than ten minutes ago. If the check fails, log the
        error. The next check tries again.
        """
        with self._lock:
            if self.monotonic_s() < self._check_at_s:
                return
            self._check_at_s = self.monotonic_s() + CHECK_S
            try:
                self._refresh()
            except SutureError as error:
                log.warning("ozone_certificate_renewal_failed", error=str(error))

    def _refresh(self) -> None:
        """Store changed certificates of the CA.

        Also renew the certificate of the datanode if it is due.
        """
        ca = self._ca()
        if ca != self.files.ca.read_bytes():
            replace_file(self.files.ca, ca)
        if self._is_due(ca):
            self._request()

    def _is_usable(self) -> bool:
        """Return whether the certificate matches the key and has not expired."""
        try:
            read_files(self.files)
            return self._left() > timedelta(0)
        except (RefusedError, ValueError):
            return False

    def _own(self) -> x509.Certificate:
        return x509.load_pem_x509_certificates(self.files.certificate.read_bytes())[0]

    def _left(self) -> timedelta:
        """Return the remaining lifetime of the certificate."""
        end = self._own().not_valid_after_utc
        return timedelta(seconds=end.timestamp() - time.time())

    def _is_due(self, ca: bytes) -> bool:
        """Return whether the certificate must be renewed.

        This is the case if it expires soon, or if its issuer is not among the certificates `ca`.
        """
        own = self._own()
        lifetime = own.not_valid_after_utc - own.not_valid_before_utc
        issuers = {one.subject for one in x509.load_pem_x509_certificates(ca)}
        is_late = self._left() < min(RENEWAL_MAX, lifetime / RENEWAL_SHARE)
        return is_late or own.issuer not in issuers

    def _ca(self) -> bytes:
        return "\n".join(self.service.ca_certificates()).encode()

    def _request(self) -> None:
        """Create a new key, get a certificate for it from the CA, and store both."""
        key = rsa.generate_private_key(public_exponent=65_537, key_size=KEY_BITS)
        datanode = security_pb2.Datanode(
            uuid=str(self.datanode_id),
            ip_address=self.ip_addresses[0] if self.ip_addresses else "",
            host_name=self.host,
            uuid128=uuid_message(self.datanode_id),
            id={"uuid": uuid_message(self.datanode_id)},
        )
        chain = self.service.certify(datanode, self._signing_request(key))
        ca = self._ca()
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        replace_file(self.files.ca, ca)
        staged = stage(self.files.key, private)
        staged.temporary.chmod(KEY_MODE)
        staged.publish()
        replace_file(self.files.certificate, chain.encode())
        log.info("ozone_certificate_renewed", expires_in_s=int(self._left().total_seconds()))

    def _signing_request(self, key: rsa.RSAPrivateKey) -> str:
        """Return the request for a certificate (PEM).

        It has the extensions that Ozone's CA requires.
        """
        names = [
            x509.NameAttribute(NameOID.COMMON_NAME, f"suture@{self.host}"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, PLACEHOLDER),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, PLACEHOLDER),
        ]
        alternatives: list[x509.GeneralName] = [
            x509.IPAddress(ipaddress.ip_address(one)) for one in self.ip_addresses
        ]
        if not _is_ip(self.host):
            alternatives.append(x509.DNSName(self.host))
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=True,
            data_encipherment=True,
            key_agreement=True,
            key_cert_sign=False,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        )
        request = (
            x509.CertificateSigningRequestBuilder()
            .subject_name(x509.Name(names))
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        return request.public_bytes(serialization.Encoding.PEM).decode()


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
