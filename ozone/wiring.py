"""Connects an agent to Ozone. It is the only module of this package that the agent imports.

`agent.main` calls it if section `[ozone]` of the configuration exists or `node.scm` has `ozone://`
addresses, and passes protocol servers and SCM links to the host. No other part of the agent depends
on Ozone.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from agent.commands.handlers import THREADS_DEFAULT_MAX
from agent.config.options import OzoneConfig
from agent.host.external_control_plane import AgentServices, ExternalControlPlane
from agent.host.protocol_servers import HostServices, MakeDoor, ProtocolServer
from ozone.datanode_server.grpc_server import OzoneGrpcServer
from ozone.scm_link.leader import OzoneScmLink
from ozone.transfer.import_admission import ImportAdmission
from ozone.transfer.incoming import ArchiveImporter
from ozone.transfer.messages import Compression
from ozone.transfer.replicate_handler import ContainerReplicator
from ozone.transfer.scratch import clear_abandoned
from ozone.transfer.service import ReplicationService
from suture.runtime.clock import SystemClock
from suture.wire.security.tls import Security

ARRIVED: Final = "it has just arrived"  # the reason for scanning a replica


def doors(config: OzoneConfig) -> Sequence[MakeDoor]:
    """Return the factories of an agent's servers for Ozone."""

    def made(inside: HostServices) -> ProtocolServer:
        return OzoneGrpcServer(inside, config.listen, [archives(inside)])

    return (made,) if config.listen else ()


def archives(inside: HostServices) -> ReplicationService:
    """Return the service through which Ozone's datanodes send containers to a host's store."""
    return ReplicationService(
        importer(inside),
        inside.store,
        inside.leases,
        inside.audit,
        inside.ask_scan,
        ImportAdmission(inside.slots),
        lease_timeout_s=inside.limits.lease_timeout_s,
    )


def importer(host: HostServices | AgentServices) -> ArchiveImporter:
    """Return the importer of Ozone containers into a host's store."""
    clear_abandoned()
    return ArchiveImporter(
        store=host.store,
        leases=host.leases,
        now_ms=SystemClock().now_ms,
        on_arrived=lambda container_id: host.ask_scan(container_id, ARRIVED),
        submit=host.submit,
    )


def make_container_replicator(led: AgentServices) -> ContainerReplicator:
    """Return the component that executes copy commands of Ozone's SCM."""
    is_packed = led.config.ozone.compress_copies
    threads = led.config.tasks.threads or THREADS_DEFAULT_MAX
    return ContainerReplicator(
        store=led.store,
        leases=led.leases,
        importer=importer(led),
        executor=ThreadPoolExecutor(threads, thread_name_prefix="ozone-fetch"),
        security=Security(allow_plaintext=led.config.tls.allow_plaintext),
        compression=Compression.ZSTD if is_packed else Compression.NO_COMPRESSION,
        monotonic_s=led.clock.monotonic_s,
        ask_scan=led.ask_scan,
    )


def make_scm_links(addresses: Sequence[str]) -> Sequence[ExternalControlPlane]:
    """Return Ozone's storage container managers at these addresses, ozone://host:port."""
    return [
        OzoneScmLink(address, make_container_replicator, is_alone=len(addresses) == 1)
        for address in addresses
    ]
