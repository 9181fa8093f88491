"""Security of an agent in a secure cluster: its identity, certificate and tokens.

The module also verifies callers. Kerberos, TLS, block tokens and container tokens are required
together. Without one of them, an agent would serve callers that it cannot verify.
"""

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import grpc

from agent.config.options import AgentConfig
from ozone.clients.datanode import DatanodeAccess, Options
from ozone.clients.site_config import read_site_config
from ozone.security.certificates import DatanodeCertificate
from ozone.security.datanode_access import OWNER, TLS, TOKENS, scm_security
from ozone.security.secret_keys import SecretKeys, TokenSigner
from ozone.security.token_verifier import TokenVerifier
from suture.errors import Code, RefusedError
from suture.wire.security.channel_renewal import RenewingChannel
from suture.wire.security.tls import Certificates, Security, TlsMaterial, channel_credentials

HOST_NAMES: Final = "hdds.datanode.use.datanode.hostname"
ANY_ADDRESS: Final = frozenset({"0.0.0.0", "::", "[::]"})  # noqa: S104 - compared, not bound


class SecureDatanode:
    """The identity, certificate and tokens of one agent. Thread-safe.

    `start` must be called before the other methods.
    """

    def __init__(self, config: AgentConfig, now_ms: Callable[[], int]) -> None:
        """Read the configuration of the cluster.

        Raise RefusedError unless it enables Kerberos, TLS, block tokens and container tokens.
        """
        site = read_site_config(Path(config.ozone.conf))
        missing = [name for name in (TLS, *TOKENS) if not site.is_set(name)]
        missing += [] if site.is_kerberos else ["ozone.security.enabled with Kerberos"]
        if missing:
            raise RefusedError(
                Code.INVALID_CONFIG,
                "cannot serve callers that are not verified: the files of "
                f"{config.ozone.conf} do not have {', '.join(missing)}",
                hint="set them in the whole cluster, or leave ozone.conf out if it is not secure",
            )
        self._config = config
        self._directory = Path(config.ozone.certificate_dir)
        self._service = scm_security(site)
        self.identity = self._service.identity
        self.uses_host_names = site.is_set(HOST_NAMES)
        keys = SecretKeys(self._service, now_ms)
        self._signer = TokenSigner(keys, OWNER, now_ms)
        self.verify = TokenVerifier(keys, now_ms).verify
        self._certificate: DatanodeCertificate | None = None
        self._certificates: Certificates | None = None

    def start(self, datanode_id: str) -> None:
        """Load or request the certificate of this datanode. Raise SutureError if this fails."""
        if self._certificate is not None:
            return
        host = advertised_host(self._config)
        self._certificate = DatanodeCertificate(
            self._service,
            self._directory,
            UUID(datanode_id),
            host=host,
            ip_addresses=addresses_of(host),
        )
        self._certificate.obtain()
        self._certificates = Certificates(self._certificate.files)

    def renew_if_due(self) -> None:
        """Renew the certificate of this datanode if it is due.

        Also store new certificates of the SCM's CA.
        """
        if self._certificate is not None:
            self._certificate.renew_if_due()

    def security(self, *, asks_certificate: bool) -> Security:
        """Return the TLS settings for a server of this agent, or for calls to datanodes.

        The calls are those to the transfer port. `asks_certificate` is True if the server requires
        a certificate from callers.
        """
        assert self._certificates is not None, "started"
        return Security(self._certificates, asks_certificate=asks_certificate)

    def access(self) -> DatanodeAccess:
        """Return the channels and tokens with which to call other datanodes."""
        return DatanodeAccess(self._open_channel, self._signer.sign)

    def _open_channel(self, address: str, options: Options) -> grpc.Channel:
        assert self._certificates is not None, "started"

        def open_one(material: TlsMaterial) -> grpc.Channel:
            return grpc.secure_channel(address, channel_credentials(material), options)

        channel: Any = RenewingChannel(self._certificates, open_one)
        return channel  # type: ignore[no-any-return]


def advertised_host(config: AgentConfig) -> str:
    """Return the host name or address under which other datanodes connect to this agent."""
    if config.node.advertise is not None:
        return config.node.advertise.rpartition(":")[0]
    host = config.ozone.listen.rpartition(":")[0]
    return socket.getfqdn() if host in ANY_ADDRESS else host


def addresses_of(host: str) -> list[str]:
    """Return the IP addresses of a host. Raise RefusedError if its name cannot be resolved."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RefusedError(
            Code.INVALID_CONFIG, f"cannot find the address of this host, {host}: {error}"
        ) from error
    addresses = dict.fromkeys(str(item[4][0]).partition("%")[0] for item in found)
    return [one for one in addresses if not ipaddress.ip_address(one).is_link_local]
