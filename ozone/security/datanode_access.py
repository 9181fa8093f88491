"""Access to the datanodes of a cluster, with TLS and tokens if its configuration requires them."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from ozone.clients.authentication import Identity, choose
from ozone.clients.datanode import NO_SECURITY, DatanodeAccess, Options
from ozone.clients.kerberos import KerberosIdentity
from ozone.clients.site_config import SiteConfig
from ozone.security.scm_security import SECURITY_PORT, ScmSecurity
from ozone.security.secret_keys import SecretKeys, TokenSigner
from suture.errors import Code, RefusedError

ANY_USER: Final = ""
OWNER: Final = "suture"
PRINCIPAL: Final = "hdds.datanode.kerberos.principal"
KEYTAB: Final = "hdds.datanode.kerberos.keytab.file"
TLS: Final = "hdds.grpc.tls.enabled"
TOKENS: Final = ("hdds.block.token.enabled", "hdds.container.token.enabled")


def datanode_identity(config: SiteConfig) -> Identity:
    """Return the identity of the datanode of this host.

    Raise RefusedError if the configuration does not name its principal and keytab.
    """
    if not config.is_kerberos:
        return choose(ANY_USER)
    server = config.get("hdds.scm.kerberos.principal")
    principal, keytab = config.get(PRINCIPAL), config.get(KEYTAB)
    missing = [
        name
        for name, value in (
            ("hdds.scm.kerberos.principal", server),
            (PRINCIPAL, principal),
            (KEYTAB, keytab),
        )
        if not value
    ]
    if missing:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot authenticate: the files of {config.directory} have no {', '.join(missing)}",
        )
    return KerberosIdentity(server, principal, Path(keytab), config.level_min)


def scm_security(config: SiteConfig) -> ScmSecurity:
    """Return a client of the SCM's security service, with the identity of this host's datanode."""
    return ScmSecurity(config.scm_addresses(SECURITY_PORT), datanode_identity(config))


def datanode_access(config: SiteConfig, now_ms: Callable[[], int]) -> DatanodeAccess:
    """Return the channels and tokens with which to call the datanodes of the cluster.

    Raise RefusedError or UnavailableError if the SCM does not return the certificates of its CA, or
    the key for tokens.
    """
    has_tls, has_tokens = config.is_set(TLS), any(map(config.is_set, TOKENS))
    if not (has_tls or has_tokens):
        return NO_SECURITY
    service = scm_security(config)
    open_channel, sign = NO_SECURITY.open_channel, NO_SECURITY.sign
    if has_tls:
        open_channel = tls_channel("\n".join(service.ca_certificates()).encode())
    if has_tokens:
        keys = SecretKeys(service, now_ms)
        keys.current()  # fail before any peer is called if the key is not permitted
        sign = TokenSigner(keys, OWNER, now_ms).sign
    return DatanodeAccess(open_channel, sign)


def tls_channel(ca: bytes) -> Callable[[str, Options], grpc.Channel]:
    """Return a function that opens TLS channels to datanodes.

    The certificate of a datanode must have been issued by `ca` (PEM).
    """
    credentials = grpc.ssl_channel_credentials(ca)
    return lambda address, options: grpc.secure_channel(address, credentials, options)
