"""Writes files: each file becomes blocks, and each block is sent to all its replicas at the same
time.

A put has four steps:

1. Divide each file into parts. Each part becomes one block.
2. Group consecutive blocks of one container.
3. Send each group in one stream per replica. A replica acknowledges a block when it is durable.
4. Commit the keys at the SCM.

A writer session has its own containers, so commits reach every replica in the order of their commit
ids (BCSID). A session may be continued after a put (`SessionState`): the next put then writes to
the same container.

If a replica fails, the writer continues without it while a majority of the replicas remains. It
reports the failure to the SCM, and a reconcile later copies the missing blocks. A busy datanode
does not count as failed; the writer calls it again.
"""

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from dataclasses import replace as with_other
from typing import Any, Final, TypeVar

import grpc

from merkle.replica import (
    CHUNK_BYTES_DEFAULT,
)
from suture.client.block_messages import Placed, messages_of, runs_of
from suture.client.fan_out import Open, ReplicaStream, broadcast, call_until_accepted
from suture.client.file_pieces import BLOCK_BYTES_DEFAULT, SourceFile, pieces_of
from suture.client.put_metadata import PutMetadata
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.runtime.clock import SystemClock
from suture.wire.clients.block_peer import NodeAddress
from suture.wire.clients.channel import RESTART_PAUSES_S, pause, retry_while, start_call
from suture.wire.clients.scm import ScmClient
from suture.wire.mapping.bounds import SIZES_MAX
from suture.wire.mapping.errors import error_from
from suture.wire.mapping.rpc_services import Stub
from suture.wire.v1 import datanode_pb2, scm_pb2

WRITE_TIMEOUT_S: Final = 60.0
LOOK_S: Final = 0.1  # renewal interval until the control plane has given one
ATTEMPTS_MAX: Final = 1 + len(RESTART_PAUSES_S)  # containers tried for a block; then the put fails
ALLOCATION_BLOCKS_MAX: Final = 4_096  # blocks per request; the SCM serves no other client meanwhile
assert ALLOCATION_BLOCKS_MAX <= SIZES_MAX

Waits = Callable[[SutureError], None]  # receives the reason why a writer waits for the SCM
Stream = Callable[[NodeAddress], Open]
Location = tuple[scm_pb2.BlockLocation, int]  # location, and number of durable replicas
T = TypeVar("T")
Name = TypeVar("Name")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A stored file. Each of its blocks is durable on at least `replicas_min` datanodes."""

    key: str
    size_bytes: int
    blocks: tuple[scm_pb2.BlockLocation, ...]
    replicas_min: int


class TooFewWritableReplicas(Exception):
    """Raised if fewer than a majority of a container's replicas accept writes. The writer then
    tries another container."""


@dataclass(slots=True)
class SessionState:
    """The state of a writer session between puts. Only one put at a time may use it."""

    client_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    put_count: int = 0
    renew_s: float = LOOK_S
    has_blocks: bool = False  # the SCM has allocated blocks, so it knows the session
    failed: dict[tuple[int, str], str] = field(default_factory=dict)
    """Replicas that have failed and get no more writes: (container id, datanode id) -> error."""
    created: set[tuple[int, str]] = field(default_factory=set)
    """Replicas that this session has created, as (container id, datanode id)."""

    def forget_except(self, container_ids: Collection[int]) -> None:
        """Forget the failed and created replicas of all containers that are not in `container_ids`.

        The SCM knows the failed replicas of these containers from the commit, so it does not
        allocate blocks on them again.
        """
        self.failed = {at: why for at, why in self.failed.items() if at[0] in container_ids}
        self.created = {at for at in self.created if at[0] in container_ids}


class WriterSession:
    """Writes blocks one after the other. Each block is sent to all its replicas at the same
    time."""

    scheme = ""  # erasure code of the containers; "" for complete replicas
    block_bytes = BLOCK_BYTES_DEFAULT
    unit_bytes = CHUNK_BYTES_DEFAULT  # block sizes are multiples of this if possible

    def __init__(
        self,
        scm: ScmClient,
        dial: Callable[[NodeAddress], Stub],
        stream: Stream,
        wrote: Callable[[int], None] = lambda _: None,
        waits: Waits = lambda _: None,
        *,
        state: SessionState | None = None,
    ) -> None:
        """Begin a new session, or continue the session `state`.

        `stream` opens a stream of block writes to a datanode. `wrote` is called with the number of
        bytes that were sent to all replicas; the number is negative if bytes have to be sent again.
        `waits` is called with each error of the control plane for which the session waits and
        retries.
        """
        self.stopped = False  # set by the client; the session then ends before its next chunk
        self.state = state or SessionState()
        self._scm = scm
        self._dial = dial
        self._wrote = wrote
        self._waits = waits
        self._stream = stream
        self._told_bytes = 0
        self._was_heard = False  # the control plane has answered; silence then means restart

    def put(self, sources: Sequence[SourceFile], *, replace: bool) -> list[StoredFile]:
        """Store `sources`, and commit all their keys together. Raise an error if one of them
        fails."""
        self.state.put_count += 1
        put_id, at_ms = f"{self.state.client_id}-{self.state.put_count}", SystemClock().now_ms()
        new = () if replace else tuple(source.key for source in sources)
        placed = self._place(sources, put_id, at_ms, new)
        written: dict[str, list[Location]] = {}
        for (piece, _), location in zip(
            placed, self._put_placed(placed, ATTEMPTS_MAX), strict=True
        ):
            written.setdefault(piece.source.key, []).append(location)
        stored = [
            StoredFile(
                source.key,
                source.size_bytes,
                tuple(location for location, _ in written[source.key]),
                min(living for _, living in written[source.key]),
            )
            for source in sources
        ]
        self._check_stopped(sources[0].key if sources else "")
        self._commit(stored, replace=replace)
        self.state.forget_except({b.block_id.container_id for one in stored for b in one.blocks})
        return stored

    def finish(self, *, close: bool, is_patient: bool = False) -> None:
        """End the session at the SCM. If `close` is True, the SCM closes the containers of the
        session now.

        If `is_patient` is True, wait while the control plane is being restarted. If `is_patient` is
        False and the control plane has never answered, send nothing, because the control plane does
        not know the session.
        """
        if not (self._was_heard or self.state.has_blocks or is_patient):
            return
        request = scm_pb2.EndWriteSessionRequest(client_id=self.state.client_id, close=close)
        self._call_scm(
            lambda: self._scm.end_write_session(request), must_end=lambda: not is_patient
        )

    def _place(
        self, sources: Sequence[SourceFile], put_id: str, at_ms: int, new_keys: Sequence[str]
    ) -> list[Placed]:
        """Divide files into blocks, and allocate the blocks at the SCM. If the containers are
        smaller than a block, use smaller blocks."""
        while True:
            pieces = [
                with_other(piece, note=PutMetadata(put_id, len(parts), source.size_bytes, at_ms))
                for source in sources
                for parts in [pieces_of(source, self.block_bytes, scheme=self.scheme)]
                for piece in parts
            ]
            try:
                blocks = self._allocate([piece.size_bytes for piece in pieces], new_keys)
            except RefusedError as refused:
                if not self._has_smaller_blocks(refused):
                    raise
            else:
                return list(zip(pieces, blocks, strict=True))

    def _has_smaller_blocks(self, refused: RefusedError) -> bool:
        """Reduce the block size to the container size that the control plane's error contains.
        Return False if the error contains none."""
        told = refused.facts.get("block_bytes_max", "")
        bytes_max = int(told) if told.isdecimal() else 0
        if not 0 < bytes_max < self.block_bytes:
            return False
        self.block_bytes = bytes_max - bytes_max % self.unit_bytes or bytes_max
        return True

    def _allocate(
        self, sizes: list[int], new_keys: Sequence[str] = ()
    ) -> list[scm_pb2.BlockAllocation]:
        """Allocate blocks of these sizes at the SCM, with several calls if there are many. If a key
        in `new_keys` already exists, the SCM refuses the first call, before any data is sent."""
        blocks: list[scm_pb2.BlockAllocation] = []
        for start in range(0, len(sizes), ALLOCATION_BLOCKS_MAX):
            request = scm_pb2.AllocateBlocksRequest(
                client_id=self.state.client_id,
                sizes=sizes[start : start + ALLOCATION_BLOCKS_MAX],
                keys=() if start else new_keys,
                scheme=self.scheme,
            )
            blocks += self._allocated(request)
        return blocks

    def _allocated(self, request: scm_pb2.AllocateBlocksRequest) -> list[scm_pb2.BlockAllocation]:
        answer = self._call_scm(lambda: self._scm.allocate_blocks(request))
        self.state.renew_s = answer.renew_ms / 1000
        self.state.has_blocks = True
        return list(answer.blocks)

    def renew(self) -> None:
        """Renew the session at the control plane. Errors are ignored.

        The method must be called every `state.renew_s` seconds. Otherwise, the control plane closes
        the containers of the session as abandoned. A control plane that does not answer does not
        close them either.
        """
        if not self.state.has_blocks:
            return
        with suppress(SutureError):
            self._scm.commit_key(scm_pb2.CommitKeyRequest(client_id=self.state.client_id))

    def _commit(self, stored: list[StoredFile], *, replace: bool) -> None:
        keys = [
            scm_pb2.KeyInfo(key=item.key, size=item.size_bytes, blocks=item.blocks)
            for item in stored
        ]
        failed = [
            scm_pb2.FailedReplica(container_id=container_id, datanode_id=datanode_id)
            for container_id, datanode_id in self.state.failed
        ]
        request = scm_pb2.CommitKeyRequest(
            client_id=self.state.client_id, keys=keys, replace=replace, failed=failed
        )
        self._call_scm(lambda: self._scm.commit_key(request))

    def _call_scm(self, work: Callable[[], T], *, must_end: Callable[[], bool] | None = None) -> T:
        """Call `work`, which calls the control plane, and return its result.

        Retry while the control plane is starting or busy. If it has answered before, also retry
        while it does not answer. Therefore, `work` may run several times. `must_end` returns True
        to stop the retries.
        """
        codes = {Code.SAFE_MODE, Code.BUSY} | ({Code.UNAVAILABLE} if self._was_heard else set())
        ends = must_end or (lambda: self.stopped)
        answer = retry_while(work, codes=codes, must_end=ends, waits=self._waits)
        self._was_heard = True
        return answer

    def _put_placed(self, placed: Sequence[Placed], attempts: int) -> list[Location]:
        """Write blocks. If too few replicas accept a group of blocks, retry in other containers, up
        to `attempts` times."""
        found: list[Location] = []
        for run in self._runs(placed):
            try:
                with self._taken_back():
                    living = self._write_run(run)
            except TooFewWritableReplicas as left:
                self._tell_failed()
                if attempts == 1:
                    raise UnavailableError(
                        Code.NOT_ENOUGH_NODES, f"cannot store {run[0][0].source.key}: {left}"
                    ) from left
                pause(RESTART_PAUSES_S[ATTEMPTS_MAX - attempts])
                pieces = [piece for piece, _ in run]
                fresh = self._allocate([piece.size_bytes for piece in pieces])
                found += self._put_placed(list(zip(pieces, fresh, strict=True)), attempts - 1)
            else:
                for piece, allocation in run:
                    at = scm_pb2.BlockLocation(
                        block_id=allocation.block_id, length=piece.size_bytes
                    )
                    found.append((at, living))
        return found

    def _runs(self, placed: Sequence[Placed]) -> list[list[Placed]]:
        """Divide the blocks into groups, and return the groups. The blocks of a group are written
        together, and are retried together after a failure."""
        return runs_of(placed)

    def _write_run(self, run: Sequence[Placed]) -> int:
        """Write blocks of one container, in one stream to each replica that has not failed. Return
        the number of replicas that have stored them durably."""
        allocation = run[0][1]
        stubs = self._live_stubs(allocation)
        before_bytes = self._told_bytes

        def call(datanode_ids: Collection[str]) -> dict[str, SutureError]:
            self._abandon_blocks(before_bytes)
            return self._spread(run, datanode_ids)

        failed = call_until_accepted(call, list(stubs), self._check_stopped)
        self._leave_behind(allocation, stubs, failed)
        self._check_majority(allocation, len(stubs))
        return len(stubs)

    def _spread(
        self, run: Sequence[Placed], datanode_ids: Collection[str]
    ) -> dict[str, SutureError]:
        """Write blocks to the given datanodes. Return the errors of the failed datanodes, by id."""
        replicas = {replica.datanode_id: replica for replica in run[0][1].replicas}
        pieces = [piece for piece, _ in run]
        lanes = {
            datanode_id: ReplicaStream(
                self._stream(replicas[datanode_id]),
                message_timeout_s=WRITE_TIMEOUT_S,
                message_count=sum(1 + piece.size_bytes // CHUNK_BYTES_DEFAULT for piece in pieces),
            )
            for datanode_id in datanode_ids
        }
        return broadcast(self._until_stopped(run), lanes)

    def _leave_behind(
        self,
        allocation: scm_pb2.BlockAllocation,
        stubs: dict[str, Stub],
        failed: Mapping[str, SutureError],
    ) -> None:
        """Record the errors of the failed datanodes, and remove the datanodes from `stubs`."""
        for datanode_id, error in failed.items():
            self.state.failed[allocation.block_id.container_id, datanode_id] = str(error)
            del stubs[datanode_id]

    def _until_stopped(self, run: Sequence[Placed]) -> Iterator[bytes]:
        for message, data_bytes in messages_of(run):
            self._check_stopped(run[0][0].source.key)
            yield message
            self._tell(data_bytes)

    def _check_stopped(self, key: str = "all") -> None:
        if self.stopped:
            raise UnavailableError(Code.CANCELLED, f"stopped before {key} was stored")

    def _tell(self, data_bytes: int) -> None:
        self._told_bytes += data_bytes
        self._wrote(data_bytes)

    @contextmanager
    def _taken_back(self) -> Iterator[None]:
        """Subtract the reported progress of the `with` block if it raises TooFewWritableReplicas,
        because its data must be written again."""
        before_bytes = self._told_bytes
        try:
            yield
        except TooFewWritableReplicas:
            self._abandon_blocks(before_bytes)
            raise

    def _abandon_blocks(self, before_bytes: int) -> None:
        if self._told_bytes != before_bytes:
            self._tell(before_bytes - self._told_bytes)

    def _check_majority(self, allocation: scm_pb2.BlockAllocation, living: int) -> None:
        """Raise TooFewWritableReplicas if the number of replicas that accept writes, `living`, is
        less than a majority of the container's replicas."""
        container_id = allocation.block_id.container_id
        if living < len(allocation.replicas) // 2 + 1:
            reasons = [why for (c, _), why in self.state.failed.items() if c == container_id]
            raise TooFewWritableReplicas("; ".join(reasons) or "no replica takes writes")

    def _tell_failed(self) -> None:
        """Report failed replicas to the SCM at once, so that it allocates blocks on other
        datanodes."""
        self._commit([], replace=False)

    def _live_stubs(self, allocation: scm_pb2.BlockAllocation) -> dict[str, Stub]:
        """Return the gRPC stubs of the replicas that have not failed, by datanode id. If needed,
        create the container on the datanodes."""
        container_id = allocation.block_id.container_id
        stubs = {
            replica.datanode_id: self._dial(replica)
            for replica in allocation.replicas
            if (container_id, replica.datanode_id) not in self.state.failed
        }
        fresh = {d: s for d, s in stubs.items() if (container_id, d) not in self.state.created}
        if fresh:
            create = datanode_pb2.CreateContainerRequest(container_id=container_id)
            before = set(fresh)
            self._fan_out(allocation, fresh, "CreateContainer", create)
            self.state.created.update((container_id, datanode_id) for datanode_id in fresh)
            for datanode_id in before - set(fresh):
                del stubs[datanode_id]
        self._check_majority(allocation, len(stubs))
        return stubs

    def _fan_out(
        self,
        allocation: scm_pb2.BlockAllocation,
        stubs: dict[str, Stub],
        method: str,
        request: object,
    ) -> None:
        """Call a method of all datanodes at the same time. Remove the stubs of failed datanodes
        from `stubs`."""

        def call(datanode_ids: Collection[str]) -> dict[str, SutureError]:
            return failures_of({d: (getattr(stubs[d], method), request) for d in datanode_ids})

        failed = call_until_accepted(call, list(stubs), self._check_stopped)
        self._leave_behind(allocation, stubs, failed)


def failures_of(calls: Mapping[Name, tuple[Any, object]]) -> dict[Name, SutureError]:
    """Call several gRPC methods at the same time, each with its request. Return the errors of the
    failed calls, by name."""
    futures = {
        name: start_call(method, request, timeout_s=WRITE_TIMEOUT_S)
        for name, (method, request) in calls.items()
    }
    failed = {}
    for name, future in futures.items():
        try:
            future.result()
        except grpc.RpcError as error:
            failed[name] = error_from(error)
    return failed
