"""Operator view and control of all background reads: scans and parity."""

from dataclasses import dataclass

from agent.reconcile.peer_challenges import ChallengeWorker
from agent.scan.parity_scrub import ParityScrub
from agent.scan.scan_manager import ScanManager
from merkle.replica import ContainerId
from suture.wire.v1 import datanode_pb2 as pb


@dataclass(frozen=True, slots=True)
class BackgroundScans:
    """The scans of this host and the proofs requested from peers; `parity` is None without parity
    scrub."""

    scrub: ScanManager
    challenges: ChallengeWorker
    parity: ParityScrub | None = None

    def status(self) -> pb.ScrubStatusResponse:
        """Return the progress of each volume, the proofs of peers, and the parity scrub."""
        answer = self.scrub.status()
        answer.challenges.CopyFrom(self.challenges.status())
        if self.parity is not None:
            answer.parity.CopyFrom(self.parity.status())
        return answer

    def pause(self, volume_id: str, duration_s: float) -> None:
        """Pause one volume's scan, or all with "". Raise RefusedError."""
        self.scrub.pause(volume_id, duration_s)

    def resume(self, volume_id: str) -> None:
        """End the pause of one volume, or of all with ""."""
        self.scrub.resume(volume_id)

    def skip(self, container_id: ContainerId) -> None:
        """Cancel the running scan of a container, if any."""
        self.scrub.skip(container_id)
