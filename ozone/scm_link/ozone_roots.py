"""Computes the root of a replica for reports to Ozone, which is the root of its CRC-32C tree.

The report of a CRC-32C tree without tombstones already has this root. Other roots are computed by
`ozone.datanode_server.trees`, once for each generation of the tree.
"""

from typing import Final

import structlog

from agent.store.replica_store import ReplicaStore
from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId
from ozone.datanode_server.trees import ozone_view
from suture.errors import SutureError
from suture.wire.v1 import container_pb2

NO_ROOT: Final = 0  # Ozone's value for a replica without a tree

log = structlog.get_logger()


class RootCache:
    """Cache of the roots of replicas for Ozone. Only one thread may use it.

    A root is computed once per generation of the tree.
    """

    def __init__(self, store: ReplicaStore) -> None:
        self._store = store
        self._folded: dict[int, tuple[int, int]] = {}  # container -> generation of the tree, root

    def root(self, report: container_pb2.ReplicaReport) -> int:
        """Return the root that Ozone would compute for a reported replica.

        Return 0 if there is none.
        """
        if not report.HasField("tree"):
            self._folded.pop(report.container_id, None)
            return NO_ROOT
        tree = report.tree
        if tree.algorithm == container_pb2.TREE_CRC32C and not tree.tombstone_count:
            return tree.root
        generation, root = self._folded.get(report.container_id, (-1, NO_ROOT))
        if generation == tree.generation:
            return root
        container_id = ContainerId(report.container_id)
        try:
            root = ozone_view(self._store, container_id).root or NO_ROOT
        except (SutureError, DamagedData) as error:  # the next report tries again
            log.warning("ozone_root_unavailable", container_id=container_id, error=str(error))
            return NO_ROOT
        self._folded[container_id] = (tree.generation, root)
        return root
