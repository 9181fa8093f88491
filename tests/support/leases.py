"""Checks whether a thread has the lease of a container, through the public interface."""

from agent.leases import ContainerLeases
from merkle.replica import ContainerId
from suture.errors import Code, UnavailableError


def is_held(leases: ContainerLeases, container_id: ContainerId) -> bool:
    """Return whether another thread holds the lease of a container, because this thread cannot
    acquire the lease immediately."""
    try:
        with leases.hold(container_id, timeout_s=0, writes_chunks=False):
            return False
    except UnavailableError as error:
        if error.code is not Code.BUSY:
            raise
        return True
