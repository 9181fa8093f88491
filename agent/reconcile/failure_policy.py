"""Decision after a failed change: skip the block, or end the repair.

- The request was invalid: skip the block. - The files of one block returned an error: skip the
block, and check the volume. - There is too little space to copy one block: skip the block, because
other blocks may need less. - The index or the volume has failed: end the repair. - The lease,
memory or disk space was not available: end the repair. A later repair may succeed.
"""

from dataclasses import dataclass
from typing import Final

from agent.store.failure_reports import StoreFailure
from agent.store.replica_store import ReplicaStore
from merkle.replica import ContainerId
from suture.errors import BlockFailed, Code, RefusedError, SutureError, VolumeFailed

BLOCKS_MAX: Final = 8
"""Number of consecutive errors of block files after which the repair ends. One damaged block must
not end a repair. After this many errors, the disk probably stores nothing, so further fetches are
useless."""


@dataclass(slots=True)
class FailureStreak:
    """Counter of consecutive failed changes in one repair."""

    store: ReplicaStore
    container_id: ContainerId
    count: int = 0

    def clear(self) -> None:
        """Reset the count after a successful change."""
        self.count = 0

    def may_go_on(self, error: SutureError) -> bool:
        """Return True if the error concerns only one block, so that other blocks may be tried.

        Return False if the repair must end because a lease, memory or disk space was not available.
        Raise `error` again if the volume failed, or after BLOCKS_MAX consecutive failures of block
        files.
        """
        if not isinstance(error, VolumeFailed):
            return isinstance(error, RefusedError)
        if error.code is Code.DISK_OUT_OF_SPACE:
            return True
        self.store.on_trouble(StoreFailure(self.container_id, True, str(error)))
        self.count += 1
        if not isinstance(error, BlockFailed) or self.count >= BLOCKS_MAX:
            raise error
        return True
