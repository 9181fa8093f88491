"""Who a certificate says its holder is: a name, roles, perhaps the id of a datanode.

    subject CN                                  the name, for people and the audit log
    URI suture:role:peer|scm|admin|client       what the holder may do; several, or none
    URI suture:node:<datanode id>               the one datanode that the holder may speak for

What a certificate is worth was decided in the handshake: it chains to an authority that we trust.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from agent.errors import Code, Refused
from agent.rpc.security.tls import Security

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

URI_SCHEME: Final = "suture"
KNOWN_COUNT_MAX: Final = 4096  # certificates; a cluster has some of each datanode
UNNAMED: Final = "unnamed"


class Role(StrEnum):
    """What the holder of a certificate is in the cluster."""

    PEER = "peer"  # a datanode: serves, asks other datanodes, reports to the SCM
    SCM = "scm"  # the control plane: serves; it calls nobody
    ADMIN = "admin"  # an operator: sees all, orders, scans; writes no data
    CLIENT = "client"  # stores and reads keys


@dataclass(frozen=True, slots=True)
class Identity:
    """What one certificate says. Times are of the wall clock."""

    name: str
    roles: frozenset[Role]
    node_id: str  # "": it may speak for any
    begins_at_s: float
    expires_at_s: float


@lru_cache(maxsize=KNOWN_COUNT_MAX)
def identity_of(certificate: bytes) -> Identity:
    """Return what the first certificate of a PEM text says. Raise Refused(INVALID_CONFIG)."""
    from cryptography import x509  # a tenth of a second that plaintext need not wait for

    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        return _identity(parsed)
    except ValueError as error:
        raise Refused(Code.INVALID_CONFIG, f"not a certificate in PEM: {error}") from error


def _identity(certificate: "Certificate") -> Identity:
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
    return Identity(
        name=str(names[0].value) if names else UNNAMED,
        roles=frozenset(roles),
        node_id=nodes[0] if nodes else "",
        begins_at_s=certificate.not_valid_before_utc.timestamp(),
        expires_at_s=certificate.not_valid_after_utc.timestamp(),
    )


def uris_of(certificate: "Certificate") -> Iterator[str]:
    """Yield the URIs among the names of a certificate."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return
    yield from names.get_values_for_type(x509.UniformResourceIdentifier)


def expires_at_s(security: Security) -> float:
    """Return when the certificate that is shown now expires; 0 without one."""
    if security.certificates is None:
        return 0.0
    return identity_of(security.certificates.material.certificate).expires_at_s


def check_own(certificate: bytes, role: Role, now_s: float) -> Identity:
    """Return who we are. Raise Refused(INVALID_CONFIG) where others would not believe it."""
    identity = identity_of(certificate)
    if now_s >= identity.expires_at_s:
        raise Refused(
            Code.INVALID_CONFIG,
            f"the certificate of {identity.name} has expired",
            hint="suture tls issue makes a new one; no restart is needed then",
        )
    if now_s < identity.begins_at_s:
        raise Refused(
            Code.INVALID_CONFIG,
            f"the certificate of {identity.name} is not valid yet",
            hint="is the clock of this host right?",
        )
    if role not in identity.roles:
        said = ", ".join(sorted(identity.roles)) or "none"
        raise Refused(
            Code.INVALID_CONFIG,
            f"the certificate of {identity.name} must have the role {role}; it has: {said}",
            hint=f"suture tls issue --role {role}",
        )
    return identity
