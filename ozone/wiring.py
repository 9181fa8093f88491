"""Connects an agent to Ozone. This is the only module of this package that the agent imports.

`agent.main` calls it if section `[ozone]` of the configuration exists, or if `node.scm` has
`ozone://` addresses. `agent.main` then passes the protocol servers and SCM links to the host. No
other part of the agent depends on Ozone.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from agent.commands.handlers import THREADS_DEFAULT_MAX
from agent.config.options import AgentConfig, OzoneConfig
from agent.host.external_control_plane import AgentServices, ExternalControlPlane
from agent.host.protocol_servers import HostServices, MakeServer
from ozone.clients.datanode_messages import XCEIVER
from ozone.datanode_server.grpc_server import bound_server, built_service
from ozone.datanode_server.xceiver_service import accept_any
from ozone.scm_link.leader import OzoneScmLink
from ozone.security.secure_datanode import SecureDatanode
from ozone.transfer.import_admission import ImportAdmission
from ozone.transfer.incoming import ArchiveImporter
from ozone.transfer.messages import SERVICE, Compression
from ozone.transfer.replicate_handler import ContainerReplicator
from ozone.transfer.scratch import clear_abandoned
from ozone.transfer.service import ReplicationService
from suture.runtime.clock import SystemClock
from suture.wire.security.tls import Security
from suture.wire.server.limited_server import BoundServer

ARRIVED: Final = "it has just arrived"  # reason in the request for a scan


def secure_datanode(config: AgentConfig) -> SecureDatanode | None:
    """Return the security components of an agent, or None if the cluster is not secure.

    Raise RefusedError if the files of the cluster are invalid.
    """
    return SecureDatanode(config, SystemClock().now_ms) if config.ozone.conf else None


def server_factories(
    config: OzoneConfig, secure: SecureDatanode | None = None
) -> Sequence[MakeServer]:
    """Return the functions that create the agent's servers for Ozone's datanodes and clients.

    A secure cluster needs two servers, other clusters one. Return an empty sequence if the config
    sets no address for the servers.
    """

    def plain(inside: HostServices) -> BoundServer:
        security = Security(allow_plaintext=inside.config.tls.allow_plaintext)
        services = {XCEIVER: built_service(inside, accept_any), SERVICE: archives(inside)}
        return bound_server(inside, config.listen, services, security)

    def verifying(inside: HostServices) -> BoundServer:
        assert secure is not None
        secure.start(inside.store.datanode_id)
        security = secure.security(asks_certificate=False)  # callers prove themselves by tokens
        return bound_server(
            inside, config.listen, {XCEIVER: built_service(inside, secure.verify)}, security
        )

    def replicating(inside: HostServices) -> BoundServer:
        assert secure is not None
        security = secure.security(asks_certificate=True)
        return bound_server(
            inside, config.replication_listen, {SERVICE: archives(inside)}, security
        )

    if not config.listen:
        return ()
    return (plain,) if secure is None else (verifying, replicating)


def archives(inside: HostServices) -> ReplicationService:
    """Return the service that transfers complete containers to and from a host's store.

    Ozone's datanodes call this service.
    """
    return ReplicationService(
        importer(inside),
        inside.store,
        inside.leases,
        inside.audit,
        inside.request_scan,
        ImportAdmission(inside.slots),
        lease_timeout_s=inside.limits.lease_timeout_s,
    )


def importer(host: HostServices | AgentServices) -> ArchiveImporter:
    """Return the component that imports Ozone's containers into the store of a host."""
    clear_abandoned()
    return ArchiveImporter(
        store=host.store,
        leases=host.leases,
        now_ms=SystemClock().now_ms,
        on_arrived=lambda container_id: host.request_scan(container_id, ARRIVED),
        submit=host.submit,
    )


def make_container_replicator(
    led: AgentServices, secure: SecureDatanode | None
) -> ContainerReplicator:
    """Return the component that executes copy commands of Ozone's SCM."""
    is_packed = led.config.ozone.compress_copies
    threads = led.config.tasks.threads or THREADS_DEFAULT_MAX
    security = Security(allow_plaintext=led.config.tls.allow_plaintext)
    return ContainerReplicator(
        store=led.store,
        leases=led.leases,
        importer=importer(led),
        executor=ThreadPoolExecutor(threads, thread_name_prefix="ozone-fetch"),
        security=security if secure is None else secure.security(asks_certificate=True),
        compression=Compression.ZSTD if is_packed else Compression.NO_COMPRESSION,
        monotonic_s=led.clock.monotonic_s,
        request_scan=led.request_scan,
    )


def make_scm_links(
    addresses: Sequence[str], secure: SecureDatanode | None = None
) -> Sequence[ExternalControlPlane]:
    """Return a link to each of Ozone's SCMs at these addresses.

    An address has the form ozone://host:port.
    """
    return [
        OzoneScmLink(
            address,
            lambda led: make_container_replicator(led, secure),
            is_alone=len(addresses) == 1,
            secure=secure,
        )
        for address in addresses
    ]
