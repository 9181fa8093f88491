"""The current load and the limit of each datanode, counted with the functions of `loads`."""

from collections.abc import Iterator
from contextlib import contextmanager

from scm.cluster.commands.loads import (
    RECONSTRUCT_WEIGHT,
    load,
    replication_limit,
    volume_limit,
)
from scm.cluster.nodes import NodeManager
from scm.state.database import StateDatabase
from scm.state.entities import CommandKind, OpState
from scm.state.options import ScmOptions


class NodeLoads:
    """Returns the loads and limits of datanodes. Callers must hold the control plane's lock."""

    def __init__(self, state: StateDatabase, nodes: NodeManager, options: ScmOptions) -> None:
        self._state = state
        self._nodes = nodes
        self._replication_limit = options.replication_limit
        self._loads: dict[str, int] | None = None  # replication loads by datanode, during a step
        self._delete_loads: dict[str, int] = {}  # delete loads by datanode, during a step

    def changed(self, datanode_id: str) -> None:
        """Delete the cached load of a datanode, because another command was queued for it."""
        if self._loads is not None:
            self._loads.pop(datanode_id, None)
            self._delete_loads.pop(datanode_id, None)

    def replication_load(self, datanode_id: str) -> int:
        """Return the number of replications that a datanode has received or that wait for it.

        A reconstruction counts as three replications.
        """
        if self._loads is None:
            return self._replication_load(datanode_id)
        if datanode_id not in self._loads:
            self._loads[datanode_id] = self._replication_load(datanode_id)
        return self._loads[datanode_id]

    def delete_load(self, datanode_id: str) -> int:
        """Return the number of deletes that a datanode has received or that wait for it."""
        if self._loads is None:
            return self._delete_load(datanode_id)
        if datanode_id not in self._delete_loads:
            self._delete_loads[datanode_id] = self._delete_load(datanode_id)
        return self._delete_loads[datanode_id]

    def _delete_load(self, datanode_id: str) -> int:
        reported = self._nodes.reported_queues(datanode_id)
        return self._load(CommandKind.DELETE, datanode_id, reported.get(CommandKind.DELETE, 0))

    def replication_limit(self, datanode_id: str) -> int:
        """Return the limit on the number of replications of a datanode.

        A reconstruction counts as three replications.
        """
        node = self._state.nodes.get(datanode_id)
        op_state = OpState.IN_SERVICE if node is None else node.op_state
        return replication_limit(op_state, self.service_limit(datanode_id))

    def service_limit(self, datanode_id: str) -> int:
        """Return the limit on replications that a datanode has while it is in service.

        The limit depends on the number of volumes that the datanode last reported as working.
        """
        live = self._nodes.liveness(datanode_id)
        volumes = () if live is None else live.volumes
        return volume_limit(self._replication_limit, sum(not v.failed for v in volumes))

    @contextmanager
    def cached_candidates(self) -> Iterator[None]:
        """Compute the load of each datanode at most once while the body runs."""
        self._loads, self._delete_loads = {}, {}
        try:
            yield
        finally:
            self._loads = None

    def _replication_load(self, datanode_id: str) -> int:
        reported = self._nodes.reported_queues(datanode_id)
        copies = self._load(
            CommandKind.REPLICATE, datanode_id, reported.get(CommandKind.REPLICATE, 0)
        )
        rebuilds = self._load(
            CommandKind.RECONSTRUCT, datanode_id, reported.get(CommandKind.RECONSTRUCT, 0)
        )
        return copies + RECONSTRUCT_WEIGHT * rebuilds

    def _load(self, kind: CommandKind, datanode_id: str, reported_count: int) -> int:
        return load(
            kind,
            self._state.commands.of_node(datanode_id),
            reported_count=reported_count,
            heard_at_s=self._nodes.last_heartbeat_at_s(datanode_id),
        )
