"""Questions to the control planes: each is asked in turn until one answers."""

from collections.abc import Sequence

from agent.errors import Code, SutureError, Unavailable
from agent.rpc.calls.scm import ScmClient
from agent.rpc.v1 import scm_pb2
from merkle.replica import BlockId, ContainerId


class ControlPlanes:
    """What a datanode asks of them, beside its heartbeats. Raises what the last one said."""

    def __init__(self, scms: Sequence[ScmClient]) -> None:
        self._scms = tuple(scms)

    def container_info(self, container_id: ContainerId) -> scm_pb2.ContainerInfo:
        """Return what is known of a container."""
        request = scm_pb2.GetContainerInfoRequest(container_id=container_id)
        error: SutureError = Unavailable(Code.UNAVAILABLE, "no control plane is configured")
        for scm in self._scms:
            try:
                return scm.get_container_info(request).container
            except SutureError as failure:
                error = failure
        raise error

    def confirm_deletes(
        self, container_id: ContainerId, block_ids: Sequence[BlockId]
    ) -> scm_pb2.ConfirmDeletesResponse:
        """Return which deletes were ordered."""
        request = scm_pb2.ConfirmDeletesRequest(container_id=container_id, local_ids=block_ids)
        error: SutureError = Unavailable(Code.UNAVAILABLE, "no control plane is configured")
        for scm in self._scms:
            try:
                return scm.confirm_deletes(request)
            except SutureError as failure:
                error = failure
        raise error
