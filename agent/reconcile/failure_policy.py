"""Scope of a failed change: the end of a repair, or an outcome of one block.

an invalid request              of its block
the files of one block          of its block; the volume is checked
no room to copy one block       of its block: others need less
the index, the volume           the end
our own side (a lease, a disk
that is full, memory)           the end, for today
"""

from dataclasses import dataclass
from typing import Final

from agent.store.failure_reports import StoreFailure
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from suture.errors import BlockFailed, Code, RefusedError, SutureError, VolumeFailed

BLOCKS_MAX: Final = 8
"""Consecutive changes that fail with the files of their block. One bad block must not end a
repair, but for a disk that stores nothing, not everything should be fetched."""


@dataclass(slots=True)
class FailureStreak:
    """The consecutive failures of one repair."""

    store: ReplicaStore
    container_id: ContainerId
    count: int = 0

    def clear(self) -> None:
        """Reset the count after a successful change."""
        self.count = 0

    def may_go_on(self, error: SutureError) -> bool:
        """Return whether a failed change is an outcome of its block, so that others may be tried.
        Raise `VolumeFailed` again if the volume failed."""
        if not isinstance(error, VolumeFailed):
            return isinstance(error, RefusedError)
        if error.code is Code.DISK_OUT_OF_SPACE:
            return True
        self.store.on_trouble(StoreFailure(self.container_id, True, str(error)))
        self.count += 1
        if not isinstance(error, BlockFailed) or self.count >= BLOCKS_MAX:
            raise error
        return True
