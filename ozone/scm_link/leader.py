"""An SCM of Ozone as the control plane of an agent (`agent.host.external_control_plane`)."""

import socket
from collections.abc import Callable
from typing import Final
from uuid import UUID

from agent.config.loading import ANY_ADDRESS
from agent.config.options import OZONE_SCHEME, AgentConfig
from agent.host.external_control_plane import AgentServices
from agent.host.outbox import Outbox
from ozone.clients.authentication import choose
from ozone.clients.connection import parse_addresses
from ozone.clients.datanode import NO_SECURITY, Datanode
from ozone.clients.peer import OzonePeer
from ozone.scm_link.heartbeat import OzoneHeartbeat, cluster_of
from ozone.scm_link.protocol import DatanodeProtocol
from ozone.scm_link.reports import DatanodeInfo
from ozone.security.secure_datanode import SecureDatanode
from ozone.transfer.replicate_handler import ContainerReplicator
from suture.errors import Code, RefusedError
from suture.runtime.loop import Worker
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.v1 import scm_pb2

ANY_USER: Final = ""


class OzoneScmLink:
    """An SCM of Ozone. Only one thread may use its connection.

    Therefore, `cluster_id` must be called before the heartbeat worker runs.
    """

    def __init__(
        self,
        address: str,
        copies: Callable[[AgentServices], ContainerReplicator],
        *,
        is_alone: bool,
        secure: SecureDatanode | None,
    ) -> None:
        """Parse `address`, which has the form ozone://host:port.

        `copies` creates the component that copies the replicas of a host. `is_alone` is True if no
        other SCM is configured. `secure` is None if the cluster is not secure.
        """
        self.address = address
        self._make_copies = copies
        self._copies: ContainerReplicator | None = None
        self._is_alone = is_alone
        (at,) = parse_addresses(address.removeprefix(OZONE_SCHEME))
        self._secure = secure
        identity = choose(ANY_USER) if secure is None else secure.identity
        self._protocol = DatanodeProtocol(at, identity)
        self._datanodes: dict[str, Datanode] = {}

    def cluster_id(self) -> str:
        """Return the cluster id of the SCM.

        Raise UnavailableError if the SCM does not answer, and RefusedError if its answer is
        invalid.
        """
        return cluster_of(self._protocol.get_version())

    def worker(self, led: AgentServices, outbox: Outbox, leads: Callable[[int], bool]) -> Worker:
        """Return the worker that sends heartbeats to this SCM.

        Raise RefusedError if the id or the address of this datanode is not valid in Ozone.
        """
        self._copies = self._make_copies(led)
        return OzoneHeartbeat(
            self._protocol,
            self_of(led),
            led,
            outbox=outbox,
            leads=leads,
            address=self.address,
            name="heartbeat" if self._is_alone else f"heartbeat-{self.address}",
            interval_s=led.config.ozone.heartbeat_interval_s,
            before=_nothing if self._secure is None else self._secure.renew_if_due,
            uses_host_names=self._secure is not None and self._secure.uses_host_names,
        )

    def dial(self, datanode: NodeAddress, index: int) -> OzonePeer:
        """Return a client of an Ozone datanode, which connects on first use. Thread-safe.

        `index` is the replica index of the datanode's shard, or 0 for a replicated container.
        """
        key = f"{datanode.datanode_id}/{index}/{datanode.address}"
        dialled = self._datanodes.get(key)
        if dialled is None:
            access = NO_SECURITY if self._secure is None else self._secure.access()
            fresh = Datanode(
                datanode.address, datanode.datanode_id, replica_index=index, access=access
            )
            dialled = self._datanodes.setdefault(key, fresh)
            if dialled is not fresh:
                fresh.close()
        return OzonePeer(dialled, index)

    def copy(
        self, command: scm_pb2.ReplicateCommand, stop: Callable[[], bool], timeout_s: float
    ) -> scm_pb2.ReplicateOutcome:
        """Execute a copy command of the SCM. Raise SutureError if the copy fails. Thread-safe."""
        assert self._copies is not None, "orders come by its worker"
        return self._copies.copy(command, stop, timeout_s)

    def close(self) -> None:
        """Wait for running copies, and close the connections."""
        if self._copies is not None:
            self._copies.close()
        self._protocol.close()
        for datanode in self._datanodes.values():
            datanode.close()


def self_of(led: AgentServices) -> DatanodeInfo:
    """Return the identity of this datanode.

    Raise RefusedError if Ozone does not accept its id or address.
    """
    try:
        datanode_id = str(UUID(led.who.datanode_id))
    except ValueError as error:
        raise RefusedError(
            Code.INELIGIBLE,
            f"cannot join Ozone: the datanode id {led.who.datanode_id} is not a UUID",
            hint="an agent with empty volumes gets a new id",
        ) from error
    host, _, port = led.protocol_addresses[0].rpartition(":")
    return DatanodeInfo(
        datanode_id=datanode_id,
        host=_host(led.config, host),
        port=int(port),
        replication_port=int(led.protocol_addresses[-1].rpartition(":")[2]),
        rack=led.config.node.rack,
        version=led.who.version,
        started_at_ms=led.clock.now_ms(),
        layout_version=led.config.ozone.layout_version,
        reserve_bytes=led.config.storage.reserve_bytes,
    )


def _nothing() -> None:
    """Do nothing. Used in the place of the renewal of certificates if the cluster is not secure."""


def _host(config: AgentConfig, listens: str) -> str:
    """Return the host name to report. The SCM replaces it by the address of the connection."""
    if config.node.advertise is not None:
        return config.node.advertise.rpartition(":")[0]
    return socket.gethostname() if listens in ANY_ADDRESS else listens
