"""Commands that write erasure-coded containers, whose clients write to each datanode directly.

    CreateContainer ─ WriteChunk ─ PutBlock ─ ... ─ CloseContainer

As in Ozone, the first write creates a container, and commits of shards have no commit id. The store
handles these writes like those of Suture's clients, under the container's lease. Writes to
replicated containers are rejected, because Ozone writes them through Raft, and its storage
container manager closes and deletes them.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final

from agent.services.write_handlers import RecoveryTracker
from agent.store.index.facts import ReplicaFacts
from agent.store.replica_store import ReplicaStore
from merkle.replica import Bcsid, BlockData, ContainerId, ReplicaState
from ozone.clients.datanode_messages import DatanodeCommand
from ozone.datanode_server.parsing import parse_block_key, parse_commit, parse_written_chunk
from ozone.datanode_server.xceiver_service import Answering, Body, CommandRequest
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.ports import Leases
from suture.wire.mapping import codec
from suture.wire.server.authorization import DONE, Audit

OPEN: Final = 1  # these are Ozone's numbers of states
RECOVERING: Final = 8
NO_SEQUENCE: Final = Bcsid(0)  # commit id of commits to shards, which no Raft has ordered


@dataclass(eq=False)
class WriteCommands:
    """Handlers of CreateContainer, WriteChunk, PutBlock, CloseContainer and DeleteContainer."""

    store: ReplicaStore
    leases: Leases
    recoveries: RecoveryTracker
    audit: Audit
    _: KW_ONLY
    lease_timeout_s: float

    def __post_init__(self) -> None:
        self.commands: Mapping[DatanodeCommand, Answering] = {
            DatanodeCommand.CREATE_CONTAINER: self._create,
            DatanodeCommand.WRITE_CHUNK: self._write,
            DatanodeCommand.PUT_BLOCK: self._put,
            DatanodeCommand.CLOSE_CONTAINER: self._audited("CloseContainer", self._close),
            DatanodeCommand.DELETE_CONTAINER: self._audited("DeleteContainer", self._delete),
        }

    # Creating and writing shards.

    def _create(self, asked: CommandRequest) -> Body:
        """Create an open, empty shard, or a RECOVERING one for a reconstruction."""
        container_id = codec.parse_container_id(asked.container_id, "containerID")
        index = codec.parse_replica_index(asked.body.replica_index, "replicaIndex")
        state = asked.body.state or OPEN
        if not index:
            raise _replicated(container_id)
        if state not in {OPEN, RECOVERING}:
            raise codec.malformed("state", f"no container is created here in state {state}")
        with self._hold(asked):
            if state == RECOVERING:
                self.recoveries.create(container_id, index)
            else:
                self.store.create_container(container_id, replica_index=index)
        return {"create_container": {}}

    def _write(self, asked: CommandRequest) -> Body:
        """Write one chunk. If the request contains a commit, also commit the block of the chunk."""
        wish = asked.body
        block_id = parse_block_key(wish.block_id, asked)
        chunk = parse_written_chunk(wish.chunk, block_id, "chunkData")
        commit = None
        if wish.HasField("commit"):
            commit = self._commit(asked, wish.commit.block, "block.blockData")
            if commit.block_id != block_id:
                raise codec.malformed("block.blockData.blockID", "is not the block of this chunk")
        with self._hold(asked):
            self._begin(asked, wish.block_id.replica_index)
            self.store.writer(asked.container_id).write_chunk(
                block_id, chunk, wish.data, commit=commit
            )
        self.recoveries.record_write(asked.container_id)
        if commit is None:
            return {"write_chunk": {}}
        return {"write_chunk": _committed(wish.block_id, commit.length_bytes)}

    def _put(self, asked: CommandRequest) -> Body:
        """Commit a block, whose chunks must all have been written. A block may have no chunks."""
        message = asked.body.block
        block = self._commit(asked, message, "blockData")
        with self._hold(asked):
            self._begin(asked, message.block_id.replica_index)
            length_bytes = self.store.writer(asked.container_id).put_block(block)
        self.recoveries.record_write(asked.container_id)
        return {"put_block": _committed(message.block_id, length_bytes)}

    def _commit(self, asked: CommandRequest, message: Any, where: str) -> BlockData:
        parse_block_key(message.block_id, asked)
        return replace(parse_commit(message, asked.container_id, where), bcsid=NO_SEQUENCE)

    def _begin(self, asked: CommandRequest, index: int) -> None:
        """Create the container if it does not exist yet.

        Raise RefusedError if the container is replicated, or has another replica index than the
        request.
        """
        try:
            here = self.store.replica(asked.container_id).replica_index
        except RefusedError as error:
            if error.code is not Code.CONTAINER_NOT_FOUND or not index:
                raise
            self.store.create_container(asked.container_id, replica_index=index)
            return
        if not here:
            raise _replicated(asked.container_id)
        if index not in {0, here}:
            raise RefusedError(
                Code.CONTAINER_NOT_FOUND,
                f"container {asked.container_id} has replica index {here} here, not {index}",
            )

    # Closing and deleting shards.

    def _close(self, asked: CommandRequest) -> Body:
        """Close a shard. Raise RefusedError for an UNHEALTHY replica, which cannot be closed."""
        with self._hold(asked):
            self._check_shard(asked)
            facts = self.store.close_container(asked.container_id, force=True)
        if facts.state is not ReplicaState.CLOSED:
            raise RefusedError(
                Code.INVALID_CONTAINER_STATE,
                f"container {asked.container_id} is {facts.state} and cannot be closed",
            )
        self.recoveries.closed(asked.container_id)
        return {"close_container": {"container_id": asked.container_id}}

    def _delete(self, asked: CommandRequest) -> Body:
        """Delete the incomplete replica of an abandoned reconstruction.

        Refuse to delete other replicas.
        """
        with self._hold(asked):
            facts = self._check_shard(asked)
            is_given_up = facts.state is ReplicaState.UNHEALTHY and facts.former_state is None
            if facts.state is not ReplicaState.RECOVERING and not is_given_up:
                raise RefusedError(
                    Code.INELIGIBLE,
                    f"container {asked.container_id} is {facts.state}: replicas are deleted by "
                    "commands of the storage container manager",
                )
            self.store.delete_container(asked.container_id, force=asked.body.force)
        return {"delete_container": {}}

    def _check_shard(self, asked: CommandRequest) -> ReplicaFacts:
        facts = self.store.replica(asked.container_id)
        if not facts.replica_index:
            raise _replicated(asked.container_id)
        return facts

    # Common parts of all commands.

    def _hold(self, asked: CommandRequest) -> AbstractContextManager[None]:
        """Hold the container's lease for a `with` block.

        Wait for the lease at most until the deadline of the caller.
        """
        timeout_s = self.lease_timeout_s
        if asked.remaining_s is not None:
            timeout_s = min(timeout_s, asked.remaining_s)
        if not asked.is_wanted():
            raise UnavailableError(Code.CANCELLED, "the caller disconnected")
        return self.leases.hold(asked.container_id, timeout_s)

    def _audited(self, action: str, carry_out: Callable[[CommandRequest], Body]) -> Answering:
        """Return a handler that executes a command and then writes the outcome to the audit log."""

        def written_down(asked: CommandRequest) -> Body:
            result = Code.CONTAINER_INTERNAL_ERROR.value
            try:
                body = carry_out(asked)
                result = DONE
            except SutureError as error:
                result = error.code.value
                raise
            finally:
                self.audit.record(
                    action,
                    result,
                    who=asked.who,
                    place=asked.place,
                    container_id=asked.container_id,
                    protocol="ozone",
                )
            return body

        return written_down


def _committed(block_id: Any, length_bytes: int) -> Body:
    """Return the fields of an answer that has the new committed length of a block."""
    block_id.bcsid = NO_SEQUENCE
    return {"committed": {"block_id": block_id, "length": length_bytes}}


def _replicated(container_id: ContainerId) -> RefusedError:
    return RefusedError(
        Code.INELIGIBLE,
        f"container {container_id} is replicated: it is written and closed through Ratis "
        "pipelines, which this datanode does not join",
    )
