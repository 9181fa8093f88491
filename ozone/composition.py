"""What makes an agent a datanode among Ozone's: the one module that the agent imports, if told to.

`agent.main` asks for it when section `[ozone]` of the config or the addresses of `node.scm` say so,
and hands doors and leaders to the host. Nothing else of the agent knows Ozone.
"""

from collections.abc import Sequence
from typing import Final

from agent.config.options import OzoneConfig
from agent.host.doors import Door, Inside, MakeDoor
from agent.host.leader import Leader
from agent.runtime.clock import SystemClock
from ozone.archive.incoming import ArchiveImporter
from ozone.archive.service import ArchiveService
from ozone.leading.leader import OzoneLeader
from ozone.serving.door import OzoneDoor

ARRIVED: Final = "it has just arrived"  # why a replica is scanned


def doors(config: OzoneConfig) -> Sequence[MakeDoor]:
    """Return how the servers of an agent for Ozone are made."""

    def made(inside: Inside) -> Door:
        return OzoneDoor(inside, config.listen, [archives(inside)])

    return (made,) if config.listen else ()


def archives(inside: Inside) -> ArchiveService:
    """Return the service by which Ozone's datanodes send containers to a host's store."""
    importer = ArchiveImporter(
        store=inside.store,
        leases=inside.leases,
        algorithm=inside.config.storage.tree_algorithm,
        now_ms=SystemClock().now_ms,
        on_arrived=lambda container_id: inside.ask_scan(container_id, ARRIVED),
        submit=inside.submit,
    )
    return ArchiveService(
        importer,
        inside.store,
        inside.leases,
        inside.audit,
        inside.ask_scan,
        lease_timeout_s=inside.limits.lease_timeout_s,
    )


def leaders(addresses: Sequence[str]) -> Sequence[Leader]:
    """Return Ozone's storage container managers at these addresses, ozone://host:port."""
    return [OzoneLeader(address, is_alone=len(addresses) == 1) for address in addresses]
