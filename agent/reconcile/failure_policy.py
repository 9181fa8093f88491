"""Effect of a failed change: it ends the repair, or it is only the outcome of its block.

- An invalid request is the outcome of its block.
- An error of the files of one block is the outcome of its block. The volume is checked.
- A lack of space to copy one block is the outcome of its block, because others may need less.
- A failure of the index or the volume ends the repair.
- A local problem (a lease, a full disk, memory) ends the repair; a later one may succeed.
"""

from dataclasses import dataclass
from typing import Final

from agent.store.failure_reports import StoreFailure
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from suture.errors import BlockFailed, Code, RefusedError, SutureError, VolumeFailed

BLOCKS_MAX: Final = 8
"""Maximum number of consecutive changes that fail because of their block's files. One bad block
must not end a repair. If the disk stores nothing, further fetches would be useless."""


@dataclass(slots=True)
class FailureStreak:
    """Counter of consecutive failures in one repair."""

    store: ReplicaStore
    container_id: ContainerId
    count: int = 0

    def clear(self) -> None:
        """Reset the count after a successful change."""
        self.count = 0

    def may_go_on(self, error: SutureError) -> bool:
        """Return True if the failure concerns only its block, so that other blocks may be tried.
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
