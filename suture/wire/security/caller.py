"""The identity in a certificate: a name, roles, and optionally the id of a datanode.

    subject CN                                  the name, for people and the audit log
    URI suture:role:peer|scm|admin|client       permissions of the holder; several, or none
    URI suture:node:<datanode id>               the only datanode for which the holder may act

The TLS handshake has already verified that a trusted authority has issued the certificate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from suture.errors import Code, RefusedError
from suture.wire.security.tls import Security

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

URI_SCHEME: Final = "suture"
KNOWN_COUNT_MAX: Final = 4096  # cached certificates; a cluster has a few per datanode
UNNAMED: Final = "unnamed"


class Role(StrEnum):
    """The role of a certificate's owner in the cluster."""

    PEER = "peer"  # a datanode: serves, calls other datanodes, reports to the SCM
    SCM = "scm"  # the control plane: serves, and calls no other process
    ADMIN = "admin"  # an operator: reads everything, orders, scans; writes no data
    CLIENT = "client"  # stores and reads keys


@dataclass(frozen=True, slots=True)
class CertificateIdentity:
    """The identity in a certificate, and its validity in seconds since 1970."""

    name: str
    roles: frozenset[Role]
    node_id: str  # "" = any
    begins_at_s: float
    expires_at_s: float


@lru_cache(maxsize=KNOWN_COUNT_MAX)
def identity_of(certificate: bytes) -> CertificateIdentity:
    """Return the identity in the first certificate of a PEM text. Raise
    RefusedError(INVALID_CONFIG) if the text has no valid certificate."""
    from cryptography import x509  # imported late: takes 0.1 s

    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        return _identity(parsed)
    except ValueError as error:
        raise RefusedError(Code.INVALID_CONFIG, f"not a certificate in PEM: {error}") from error


def _identity(certificate: "Certificate") -> CertificateIdentity:
    from cryptography.x509.oid import NameOID

    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    roles, nodes = set(), []
    for uri in uris_of(certificate):
        scheme, _, rest = uri.partition(":")
        kind, _, value = rest.partition(":")
        if scheme != URI_SCHEME:
            continue
        if kind == "role" and value in set(Role):
            roles.add(Role(value))
        elif kind == "node" and value:
            nodes.append(value)
    return CertificateIdentity(
        name=str(names[0].value) if names else UNNAMED,
        roles=frozenset(roles),
        node_id=nodes[0] if nodes else "",
        begins_at_s=certificate.not_valid_before_utc.timestamp(),
        expires_at_s=certificate.not_valid_after_utc.timestamp(),
    )


def uris_of(certificate: "Certificate") -> Iterator[str]:
    """Yield the URIs in a certificate's subject alternative names."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    yield from names.get_values_for_type(x509.UniformResourceIdentifier)


def expires_at_s(security: Security) -> float:
    """Return the time at which the current certificate expires, in seconds since 1970. Return 0 if
    the process has no certificate."""
    if security.certificates is None:
        return 0.0
    return identity_of(security.certificates.material.certificate).expires_at_s


def check_own(certificate: bytes, role: Role, now_s: float) -> CertificateIdentity:
    """Return the identity in this process's own certificate. Raise RefusedError(INVALID_CONFIG) if
    other processes would reject the certificate."""
    identity = identity_of(certificate)
    if now_s >= identity.expires_at_s:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"the certificate of {identity.name} has expired",
            hint="suture tls issue creates a new one; no restart is needed",
        )
    if now_s < identity.begins_at_s:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"the certificate of {identity.name} is not valid yet",
            hint="check the clock of this host",
        )
    if role not in identity.roles:
        said = ", ".join(sorted(identity.roles)) or "none"
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"the certificate of {identity.name} must have the role {role}; it has: {said}",
            hint=f"suture tls issue --role {role}",
        )
    return identity
