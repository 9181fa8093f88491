"""Handlers of the commands that return facts or trees of replicas, and of the test command Echo."""

from collections.abc import Mapping
from typing import Final

from agent.store.index.facts import ReplicaFacts
from agent.store.replica_store import ReplicaStore
from merkle.replica import CONTAINER_BYTES_MAX, ReplicaState
from ozone.clients.datanode_messages import DatanodeCommand
from ozone.datanode_server.messages import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX
from ozone.datanode_server.trees import checked_size, ozone_view
from ozone.datanode_server.xceiver_service import Answering, Body, CommandRequest
from ozone.disk.encoding import encode_tree_file
from suture.errors import Code, RefusedError

ECHO_BYTES_MAX: Final = 4 * 1024**2
CONTAINERS_MAX: Final = 1_000  # maximum containers in one list, of 40 bytes each
KEY_VALUE: Final = 1  # Ozone's number for its only type of container
STATES: Final = {
    ReplicaState.OPEN: 1,
    ReplicaState.CLOSING: 2,
    ReplicaState.QUASI_CLOSED: 3,
    ReplicaState.CLOSED: 4,
    ReplicaState.UNHEALTHY: 5,
    ReplicaState.DELETED: 7,
    ReplicaState.RECOVERING: 8,
}
"""Ozone's numbers of states (`ContainerDataProto.State`)."""
assert set(STATES) == set(ReplicaState)


class ContainerCommands:
    """Handlers of Echo, ReadContainer, ListContainer and GetContainerChecksumInfo."""

    def __init__(self, store: ReplicaStore) -> None:
        self._store = store
        self.commands: Mapping[DatanodeCommand, Answering] = {
            DatanodeCommand.ECHO: self._echo,
            DatanodeCommand.READ_CONTAINER: self._container,
            DatanodeCommand.LIST_CONTAINER: self._containers,
            DatanodeCommand.GET_CONTAINER_CHECKSUM_INFO: self._checksum_info,
        }

    def _echo(self, asked: CommandRequest) -> Body:
        """Return as many bytes as requested. Raise RefusedError if the request asks for a delay."""
        count = asked.body.answer_bytes
        if not 0 <= count <= ECHO_BYTES_MAX:
            raise RefusedError(
                Code.MALFORMED_REQUEST,
                f"invalid echo size {count}: expected 0..{ECHO_BYTES_MAX} bytes",
            )
        if asked.body.sleep_ms > 0:
            raise RefusedError(Code.INELIGIBLE, "cannot echo with a sleep: it would block a thread")
        return {"echo": {"payload": bytes(count)}}

    def _container(self, asked: CommandRequest) -> Body:
        facts = self._store.replica(asked.container_id)
        return {"read_container": {"container": _container_data(facts)}}

    def _containers(self, asked: CommandRequest) -> Body:
        """Return the facts of several replicas, from the requested container id on.

        The datanode need not have a container with this id.
        """
        count = min(asked.body.count or CONTAINERS_MAX, CONTAINERS_MAX)
        start = max(asked.container_id, 0)
        facts = self._store.replicas(start=start, count=count)
        return {"list_container": {"containers": list(map(_container_data, facts))}}

    def _checksum_info(self, asked: CommandRequest) -> Body:
        container_id = asked.container_id
        view = ozone_view(self._store, container_id)
        data = encode_tree_file(container_id, view.tree, view.root)
        what = f"the tree of container {container_id}"
        info = checked_size(what, data, MESSAGE_BYTES_MAX - FRAME_BYTES_MAX)
        return {"get_container_checksum_info": {"container_id": container_id, "info": info}}


def _container_data(facts: ReplicaFacts) -> Body:
    """Return the facts of a replica as fields of Ozone's message, without its path on disk."""
    return {
        "container_id": facts.container_id,
        "used_bytes": facts.used_bytes,
        "size": CONTAINER_BYTES_MAX,
        "block_count": facts.block_count,
        "state": STATES[facts.state],
        "type": KEY_VALUE,
    }
