"""Status and control of all background reads for operators: scans, challenges and parity scrub."""

from dataclasses import dataclass

from agent.reconcile.peer_challenges import ChallengeWorker
from agent.scan.parity_scrub import ParityScrub
from agent.scan.scan_manager import ScanManager
from merkle.replica import ContainerId
from suture.wire.v1 import datanode_pb2 as pb


@dataclass(frozen=True, slots=True)
class BackgroundScans:
    """The background reads of this host: scans, challenges to peers and parity scrub.

    A challenge is a request to a peer to prove that its disk has certain bytes. `parity` is None if
    the parity scrub is disabled.
    """

    scrub: ScanManager
    challenges: ChallengeWorker
    parity: ParityScrub | None = None

    def status(self, *, with_last_pass: bool = False) -> pb.ScrubStatusResponse:
        """Return the progress of the scans, the challenges and the parity scrub.

        The scans are listed by volume.
        """
        answer = self.scrub.status(with_last_pass=with_last_pass)
        answer.challenges.CopyFrom(self.challenges.status())
        if self.parity is not None:
            answer.parity.CopyFrom(self.parity.status())
        return answer

    def pause(self, volume_id: str, duration_s: float) -> None:
        """Pause the scan of one volume, or of all volumes if `volume_id` is "".

        Raise RefusedError if there is no such scan, or if the duration is invalid.
        """
        self.scrub.pause(volume_id, duration_s)

    def resume(self, volume_id: str) -> None:
        """End the pause of one volume, or of all volumes if `volume_id` is ""."""
        self.scrub.resume(volume_id)

    def skip(self, container_id: ContainerId) -> None:
        """Stop the background scan of a container if it is running."""
        self.scrub.skip(container_id)
