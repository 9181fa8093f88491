"""Requests to the control planes, and creation of the workers that send requests to peers.

A request is sent to one control plane after the other until one of them answers.
"""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from agent.config.options import ScanConfig
from agent.reconcile.peer_challenges import ChallengeWorker
from agent.scan.parity_scrub import ParityPolicy, ParityScrub
from agent.scan.scan_manager import ScanManager
from agent.store.replica_store import ReplicaStore
from merkle.replica import BlockId, ContainerId
from suture.errors import Code, SutureError, UnavailableError
from suture.runtime.clock import Clock
from suture.runtime.loop import ProgressMarker
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.peer import Peer
from suture.wire.clients.scm import ScmClient
from suture.wire.v1 import scm_pb2

T = TypeVar("T")

PARITY_BYTES_PER_S: Final = 5 * 1024**2  # rate of the parity scrub, summed over all shards


class ControlPlanes:
    """Requests of this datanode to the control planes, except for heartbeats.

    If no control plane answers, a request raises the SutureError of the last one.
    """

    def __init__(self, scms: Sequence[ScmClient]) -> None:
        self._scms = tuple(scms)

    def container_info(self, container_id: ContainerId) -> scm_pb2.ContainerInfo:
        """Return the control plane's record of a container."""
        request = scm_pb2.GetContainerInfoRequest(container_id=container_id)
        return self._first(lambda scm: scm.get_container_info(request)).container

    def confirm_deletes(
        self, container_id: ContainerId, block_ids: Sequence[BlockId]
    ) -> scm_pb2.ConfirmDeletesResponse:
        """Return the blocks that the control plane ordered to delete, and the blocks that belong to
        a key.

        Only the blocks in `block_ids` are considered.
        """
        request = scm_pb2.ConfirmDeletesRequest(container_id=container_id, local_ids=block_ids)
        return self._first(lambda scm: scm.confirm_deletes(request))

    def datanode_addresses(self) -> list[str]:
        """Return the addresses of all datanodes; an empty list if no control plane answers."""
        try:
            answer = self._first(lambda scm: scm.list_nodes(scm_pb2.ListNodesRequest()))
        except SutureError:
            return []
        return [node.address for node in answer.nodes]

    def _first(self, ask: Callable[[ScmClient], T]) -> T:
        """Return the response of the first control plane that answers.

        If none of them answers, raise the last SutureError.
        """
        error: SutureError = UnavailableError(Code.UNAVAILABLE, "no control plane is configured")
        for scm in self._scms:
            try:
                return ask(scm)
            except SutureError as failure:
                error = failure
        raise error


@dataclass(frozen=True, slots=True)
class PeerQueryDeps:
    """Services for two workers that send requests to peers.

    The challenge worker asks peers to prove that they have certain chunks. The parity scrub
    compares the shards of erasure-coded containers.
    """

    store: ReplicaStore
    control_planes: "ControlPlanes"
    dial: Callable[[NodeAddress], Peer]
    clock: Clock

    def challenges(
        self,
        config: ScanConfig,
        request_scan: Callable[[ContainerId, str], None],
        count: Callable[[str], None],
    ) -> ChallengeWorker:
        """Return the challenge worker, which asks peers to prove that they have certain chunks.

        If scans are disabled, the worker does nothing.
        """
        return ChallengeWorker(
            self.store,
            self.store.datanode_id,
            config.challenge_interval_s if config.enabled else 0,
            info=self.control_planes.container_info,
            dial=self.dial,
            request_scan=request_scan,
            count=count,
            clock=self.clock,
        )

    def parity(
        self, config: ScanConfig, scrub: ScanManager, pulse: ProgressMarker, stop: threading.Event
    ) -> ParityScrub | None:
        """Return the parity scrub worker, which compares the shards of erasure-coded containers.

        Return None if the parity scrub is disabled.
        """
        if not config.enabled or not config.parity_interval_s:
            return None
        jitter_s = random.uniform(0.0, config.start_jitter_s)  # noqa: S311 - no secret
        return ParityScrub(
            self.store,
            self.store.datanode_id,
            ParityPolicy(config.parity_interval_s, jitter_s),
            info=self.control_planes.container_info,
            dial=self.dial,
            pace=scrub.fixed_pace(PARITY_BYTES_PER_S, pulse),
            is_held=scrub.is_paused,
            stop=stop,
            clock=self.clock,
            pulse=pulse,
        )
