"""Handlers of the RPCs about the datanode itself: its status, its background scans, its volumes."""

from collections.abc import Callable
from dataclasses import dataclass

from agent.services.service_protocols import ScrubControl, VolumeControl
from suture.errors import Code, RefusedError
from suture.wire.mapping import codec
from suture.wire.v1 import datanode_pb2 as pb

Status = Callable[[], pb.StatusResponse]


@dataclass(eq=False)
class AdminHandlers:
    """Handlers of Status, ScrubStatus, ControlScrub, ControlVolume, ListDisks.

    `scrub` is None if this datanode has no background scans. `volumes` is None if its volumes
    cannot be changed.
    """

    status: Status
    scrub: ScrubControl | None = None
    volumes: VolumeControl | None = None

    def ControlVolume(self, request: pb.ControlVolumeRequest) -> pb.ControlVolumeResponse:
        """Change the service mode of a volume (in service, read-only or retiring), or add a volume.

        Return the state of all volumes.
        """
        if self.volumes is None:
            raise RefusedError(
                Code.INELIGIBLE, "cannot change volumes: this datanode has a fixed set of volumes"
            )
        match request.WhichOneof("wish"):
            case "service":
                self.volumes.set_mode(
                    request.volume_id,
                    service=request.service,
                    target_id=request.target_volume_id,
                )
            case "add_path":
                self.volumes.add(request.add_path)
            case _:
                raise codec.malformed("wish", "is not set")
        return pb.ControlVolumeResponse(volumes=self.volumes.status())

    def ListDisks(self, _request: pb.ListDisksRequest) -> pb.ListDisksResponse:
        """Return the health reports of the disks of all volumes."""
        return pb.ListDisksResponse(disks=() if self.volumes is None else self.volumes.disks())

    def ScrubStatus(self, request: pb.ScrubStatusRequest) -> pb.ScrubStatusResponse:
        """Return the progress of the background scans."""
        if self.scrub is None:
            return pb.ScrubStatusResponse()
        return self.scrub.status(with_last_pass=request.with_last_pass)

    def ControlScrub(self, request: pb.ControlScrubRequest) -> pb.ScrubStatusResponse:
        """Pause, resume or cancel background scans. Return their progress."""
        if self.scrub is None:
            raise RefusedError(
                Code.INELIGIBLE,
                "cannot control scans: background scans are disabled on this datanode",
            )
        match request.WhichOneof("wish"):
            case "pause_ms":
                self.scrub.pause(request.volume_id, request.pause_ms / 1000)
            case "resume":
                self.scrub.resume(request.volume_id)
            case "skip_container_id":
                self.scrub.skip(codec.parse_container_id(request.skip_container_id))
            case _:
                raise codec.malformed("wish", "is not set")
        return self.scrub.status()

    def Status(self, _request: pb.StatusRequest) -> pb.StatusResponse:
        """Return the status of this datanode."""
        return self.status()
