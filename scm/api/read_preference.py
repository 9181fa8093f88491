"""Ranks the datanodes from which a client should read a container.

A datanode ranks lower if it is unreachable, if its replica is unhealthy, if its replica lacks
commits, or if it leaves service or goes into maintenance. An earlier property in this list has more
weight than all later ones. Leaving datanodes rank lower, because they are busy with copies.
"""

from typing import Final

from merkle.replica import ReplicaState
from scm.api.call_values import DatanodeAddress
from scm.cluster.lifecycle import is_complete
from scm.cluster.nodes import NodeManager
from scm.state.database import StateDatabase
from scm.state.entities import Container, ContainerState, NodeHealthState, OpState, Replica

STANDINGS_KEPT: Final = 10_000  # recently requested containers kept: some megabytes

_SILENCE: Final = {NodeHealthState.HEALTHY: 0, NodeHealthState.STALE: 1, NodeHealthState.DEAD: 2}


class ReadPreference:
    """Ranks the datanodes that have replicas of a container.

    Callers must hold the control plane's lock.
    """

    def __init__(self, state: StateDatabase, nodes: NodeManager) -> None:
        self._state = state
        self._nodes = nodes
        self._standings: dict[int, list[tuple[str, bool, bool]]] = {}
        self._unchanged = state.settled()  # containers whose cached entries are current

    def locations(self, container: Container) -> tuple[tuple[DatanodeAddress, ...], int]:
        """Return the datanodes from which to read a container, in order of preference.

        The second value is the number of datanodes that rank as high as the first one.
        """
        holders = self._standings_of(container)
        nodes = self._nodes.health_of([holder[0] for holder in holders])
        ranked = []
        for (datanode_id, is_bad, is_behind), (node, health) in zip(holders, nodes, strict=True):
            is_leaving = node is not None and node.op_state is not OpState.IN_SERVICE
            doubts = (_SILENCE[health], is_bad, is_behind, is_leaving)
            ranked.append((doubts, datanode_id, "" if node is None else node.address))
        if not ranked:
            return (), 0
        ranked.sort()
        least = ranked[0][0]
        equal_count = 0
        endpoints = []
        for doubts, datanode_id, address in ranked:
            equal_count += doubts == least
            endpoints.append(DatanodeAddress(datanode_id, address))
        return tuple(endpoints), equal_count

    def _standings_of(self, container: Container) -> list[tuple[str, bool, bool]]:
        """Return the datanodes that have readable data of a container, in no order.

        Each entry has the datanode id, True if the replica is unhealthy, and True if the replica
        lacks commits. The result is cached until the container changes. Clients often request keys
        of the same containers, and without a cache, each request would decode all replicas.
        """
        container_id = container.container_id
        if container_id in self._unchanged and container_id in self._standings:
            return self._standings[container_id]
        replicas = self._state.replicas.of(container_id)
        reported = {replica.datanode_id for replica in replicas}
        found = [
            (
                replica.datanode_id,
                replica.state is ReplicaState.UNHEALTHY,
                _is_behind(container, replica),
            )
            for replica in replicas
            if not replica.load_error
        ]
        found += [(node, False, False) for node in container.pipeline if node not in reported]
        if len(self._standings) >= STANDINGS_KEPT:
            self._standings.clear()
        self._standings[container_id] = found
        self._unchanged.add(container_id)
        return found


def _is_behind(container: Container, replica: Replica) -> bool:
    if container.state in {ContainerState.CLOSED, ContainerState.QUASI_CLOSED}:
        return not is_complete(container, replica)
    return replica.bcsid < container.sequence_id
