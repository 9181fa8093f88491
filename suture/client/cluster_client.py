"""The internal client: it stores files under keys, and reads them from any replica.

The client trusts no datanode. It verifies every window of every chunk. If a chunk is damaged in one
replica, the client reads the chunk from another replica.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from itertools import zip_longest
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeVar

from merkle.replica import BlockId, ContainerId
from suture.client.block_reader import ReplicaBlockReader, ReplicaSource
from suture.client.fan_out import Open
from suture.client.file_pieces import SourceFile
from suture.client.file_spans import FileSpan, spans_of
from suture.client.replica_ranking import DatanodeStats
from suture.client.session_pool import SessionPool, balance_shares, end_session, put_share
from suture.client.small_puts import SmallPuts, is_small
from suture.client.writer import StoredFile, Waits, WriterSession
from suture.ec.scheme import SHARDS_MAX, Scheme, parse_scheme
from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.wire.clients.block_peer import BlockPeer, NodeAddress
from suture.wire.clients.channel import ChannelClosed, DatanodesSilent, pause, restart_pauses
from suture.wire.clients.scm import ScmClient
from suture.wire.mapping.blockpieces import Data
from suture.wire.mapping.rpc_services import Stub
from suture.wire.security.tls import LOOPBACK_ONLY, Security
from suture.wire.v1 import scm_pb2

if TYPE_CHECKING:
    from suture.client.ecreader import GroupReader
    from suture.wire.clients.peer import Peer

P = TypeVar("P", bound=BlockPeer)
T = TypeVar("T")

LANES_DEFAULT: Final = 4  # parallel writer sessions, each with its own container
NOWHERE: Final = scm_pb2.ContainerReplicas()
AHEAD_BYTES: Final = 1024**2  # bytes left of a block when the next is requested: more fills caches


class ClusterClient:
    """Stores and reads keys in the cluster of one SCM. Use it as a context manager. Thread-safe."""

    def __init__(self, scm_address: str, *, security: Security = LOOPBACK_ONLY) -> None:
        self.security = security
        self.scm = ScmClient(scm_address, security=security)
        self.degraded: dict[str, str] = {}  # datanode -> why it could not be read
        self._conduct = DatanodeStats()
        self._pool = SessionPool(self.scm, self._dial, self._stream)
        self._small_puts = SmallPuts(self._pool)
        self._peers: dict[tuple[type, str, str], BlockPeer] = {}  # by class, id and address
        self._cells: ThreadPoolExecutor | None = None
        self.is_closed = False
        self._lock = Lock()  # protects the objects that are created on first use

    def __enter__(self) -> "ClusterClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the kept sessions and close every connection. Later calls open no new connections.

        Running operations of other threads fail soon, with various errors. `is_closed` is then
        True. The connection to the control plane is closed first; otherwise, the threads would
        report their datanodes to the control plane as failed.
        """
        with self._lock:
            was_closed, self.is_closed = self.is_closed, True
        if not was_closed:
            self._small_puts.close()
            self._pool.close()
        self.scm.close()
        for peer in self._peers.values():
            peer.close()
        if self._cells is not None:
            self._cells.shutdown(wait=False, cancel_futures=True)

    def put(
        self,
        sources: Sequence[SourceFile],
        *,
        lanes: int = LANES_DEFAULT,
        replace: bool = False,
        close: bool = False,
        scheme: Scheme | None = None,
        progress: Callable[[int], None] = lambda _: None,
        waits: Waits = lambda _: None,
    ) -> tuple[list[StoredFile], list[int]]:
        """Store every source. Return the stored files and the ids of the containers that have their
        blocks.

        If `scheme` is not None, the files are erasure-coded; otherwise each replica is a complete
        copy. If `close` is True, the SCM is asked to close the containers. `progress` is called by
        several threads with the number of bytes that were sent to all replicas.

        The first failure stops the call and is raised. The number of stored files is in the error's
        facts as `stored_files`; keys that were already committed remain stored. If the control
        plane restarts or is in safe mode, the call waits up to two minutes, and `waits` is called
        with the reason by several threads. If the control plane does not return after everything is
        stored, the call fails only if `close` is True.

        Small files that several threads store at the same time are stored in one batch. After a
        successful put, its writer sessions are kept for the next put until the client is closed.
        """
        if len(sources) == 1 and scheme is None and not close and is_small(sources[0]):
            try:
                one = self._small_puts.put(
                    sources[0], replace=replace, progress=progress, waits=waits
                )
            except SutureError as error:
                error.facts["stored_files"] = "0"
                raise
            return [one], containers_of([one])
        shares = balance_shares(sources, max(1, min(lanes, len(sources))))
        sessions = [self._pool.acquire(scheme, progress, waits) for _ in shares]
        stored: list[StoredFile] = []
        try:
            self._run_sessions(sessions, shares, stored, replace=replace)
        except BaseException as error:
            for session in sessions:
                end_session(session, close=close)
            if isinstance(error, SutureError):
                error.facts["stored_files"] = str(len(stored))
            raise
        try:
            for session in sessions:
                if close:
                    session.finish(close=True, is_patient=True)
                else:
                    self._pool.release(session)
        except SutureError as error:
            error.facts["stored_files"] = str(len(stored))
            raise
        return stored, containers_of(stored)

    def _run_sessions(
        self,
        sessions: Sequence[WriterSession],
        shares: Sequence[list[SourceFile]],
        stored: list[StoredFile],
        *,
        replace: bool,
    ) -> None:
        """Store the files: each session stores its part of the files in its own thread. If one
        session fails, or on Ctrl-C, stop all sessions."""
        with ThreadPoolExecutor(len(sessions) or 1, thread_name_prefix="put") as pool:
            futures = [
                pool.submit(put_share, session, share, replace, stored)
                for session, share in zip(sessions, shares, strict=True)
            ]
            try:
                for future in _ended(futures, sessions):
                    future.result()
            finally:
                for session in sessions:
                    session.stopped = True

    def find(self, key: str) -> scm_pb2.LookupKeyResponse:
        """Return the length of `key` and the location of its blocks. Raise RefusedError if there is
        no such key."""
        return self.scm.lookup_key(scm_pb2.LookupKeyRequest(key=key))

    def get(self, key: str, *, datanode_id: str | None = None) -> Iterator[Data]:
        """Yield all bytes of `key`, verified. For `datanode_id` and the errors see `read`."""
        return self.read(self.find(key), datanode_id=datanode_id)

    def read(
        self,
        answer: scm_pb2.LookupKeyResponse,
        *,
        datanode_id: str | None = None,
        start: int = 0,
        stop: int | None = None,
    ) -> Iterator[Data]:
        """Yield the verified bytes of a key from `start` up to, but not including, `stop`.

        `answer` is the result of `find`. Only the blocks in the range are read. If `datanode_id`
        (an id or a prefix of it) is not None, only the replica on that datanode is read. Otherwise,
        each chunk is read from any replica in which it is intact. If an unusable datanode makes a
        degraded read of an erasure-coded key necessary, the datanode and the reason are added to
        `degraded`.

        Containers may move while a large key is read. If bytes become unavailable, the client looks
        the key up again and continues at the same position. If datanodes do not answer, the client
        calls them again for a few seconds, because they may be restarting. If the key then has
        other blocks, raise RefusedError(KEY_REPLACED), so that two versions are never mixed.
        """
        at, looked_up_at = start, -1
        waits_s: Iterator[float] = iter(())
        while True:
            try:
                for part in self._read_from(answer, at, stop, datanode_id):
                    at += len(part)
                    yield part
            except UnavailableError as error:
                if at != looked_up_at:
                    waits_s = restart_pauses()
                wait_s = next(waits_s, None) if isinstance(error, DatanodesSilent) else None
                if at == looked_up_at and wait_s is None:  # no progress since the last lookup
                    raise
                answer = self._found_again(answer, error, is_called_again=wait_s is not None)
                looked_up_at = at
                pause(wait_s or 0)
            else:
                return

    def _found_again(
        self, answer: scm_pb2.LookupKeyResponse, error: UnavailableError, *, is_called_again: bool
    ) -> scm_pb2.LookupKeyResponse:
        """Look a key up again after a read error, and return its present location.

        Raise `error`, the read error, if the lookup fails, or if the location is unchanged and
        `is_called_again` is False. Raise RefusedError if the key was deleted or replaced.
        """
        key = answer.key.key
        try:
            now = self.find(key)
        except UnavailableError:
            raise error from None
        except RefusedError as refused:
            if refused.code is not Code.KEY_NOT_FOUND:
                raise
            message = f"key {key} was deleted while it was read"
            raise RefusedError(Code.KEY_NOT_FOUND, message) from error
        if now.key.blocks != answer.key.blocks:
            raise RefusedError(
                Code.KEY_REPLACED,
                f"cannot read key {key}: it was replaced during the read",
                hint="read it again from the beginning; the data read so far is of the old version",
            ) from error
        if now.containers == answer.containers and not is_called_again:
            raise error
        return now

    def _read_from(
        self,
        answer: scm_pb2.LookupKeyResponse,
        start: int,
        stop: int | None,
        datanode_id: str | None,
    ) -> Iterator[Data]:
        """Yield the bytes of a key, as `read` does, from the replicas that `answer` lists."""
        located = {item.container_id: item for item in answer.containers}
        groups: dict[int, GroupReader] = {}  # by container; shards may move after this read
        spans = spans_of(answer.key.blocks, start, stop)
        key, ahead = answer.key.key, None
        for span, following in zip_longest(spans, spans[1:]):
            location = span.location
            found = located.get(location.block_id.container_id, NOWHERE)
            if found.scheme:
                if datanode_id is not None:
                    raise RefusedError(
                        Code.INELIGIBLE,
                        f"cannot read {key} from one datanode: container {found.container_id} "
                        "is erasure-coded",
                    )
                yield from self._read_group(span, found, groups)
                continue
            reader = ahead or self._reader(key, location, found, datanode_id)
            ahead = None
            left_bytes = span.size_bytes
            try:
                for part in reader.read(span.start, span.stop):
                    left_bytes -= len(part)
                    if left_bytes <= AHEAD_BYTES and ahead is None and following is not None:
                        ahead = self._start_block(key, following.location, located, datanode_id)
                    yield part
            finally:
                for datanode in reader.faults:
                    self._conduct.record_failure(datanode)

    def _start_block(
        self,
        key: str,
        location: scm_pb2.BlockLocation,
        located: Mapping[int, scm_pb2.ContainerReplicas],
        datanode_id: str | None,
    ) -> ReplicaBlockReader | None:
        """Return a reader for the next block, whose transfer has been started. Return None if the
        block is erasure-coded."""
        found = located.get(location.block_id.container_id, NOWHERE)
        if found.scheme:
            return None
        reader = self._reader(key, location, found, datanode_id)
        reader.begin()
        return reader

    def peer(self, datanode: NodeAddress) -> "Peer":
        """Return a client for all calls to a datanode. The connection is created on first use."""
        from suture.wire.clients.peer import Peer  # loads trees, which few programs need

        return self._connect(datanode, Peer)

    def block_peer(self, datanode: NodeAddress) -> BlockPeer:
        """Return a client for reads and writes of a datanode's blocks. The connection is created on
        first use."""
        return self._connect(datanode, BlockPeer)

    def _connect(self, datanode: NodeAddress, kind: type[P]) -> P:
        key = kind, datanode.datanode_id, datanode.address
        known = self._peers.get(key)
        if known is None:
            with self._lock:
                if self.is_closed:
                    raise ChannelClosed
                known = self._peers.get(key)
                if known is None:
                    known = self._peers[key] = kind(
                        datanode.address, datanode_id=datanode.datanode_id, security=self.security
                    )
        assert isinstance(known, kind)
        return known

    def _reader(
        self,
        key: str,
        location: scm_pb2.BlockLocation,
        found: scm_pb2.ContainerReplicas,
        datanode_id: str | None,
    ) -> ReplicaBlockReader:
        """Return a reader for one block. It asks the replicas on datanodes with the fewest failures
        first.

        If `datanode_id` is given, only the replica on that datanode is read. Raise RefusedError if
        there are replicas, but none is on that datanode.
        """
        block_id = location.block_id
        spread = rotate_replicas(found.replicas, found.equal_count, block_id.local_id)
        candidates = spread
        if datanode_id:
            candidates = [one for one in spread if one.datanode_id.startswith(datanode_id)]
        if found.replicas and not candidates:
            raise RefusedError(
                Code.CONTAINER_NOT_FOUND,
                f"no datanode whose id begins with {datanode_id} has a replica of container "
                f"{block_id.container_id}, which holds {key}",
            )
        if not self._conduct.is_unremarkable():
            candidates.sort(key=lambda one: self._conduct.rank(one.datanode_id))
        return ReplicaBlockReader(
            ContainerId(block_id.container_id),
            BlockId(block_id.local_id),
            location.length,
            key,
            [ReplicaSource(one.datanode_id, self.block_peer(one)) for one in candidates],
            self._conduct,
        )

    def _read_group(
        self, span: FileSpan, found: scm_pb2.ContainerReplicas, groups: dict[int, "GroupReader"]
    ) -> Iterator[Data]:
        from suture.client.ecreader import GroupReader  # most programs never need the codec

        reader = groups.get(found.container_id)
        if reader is None:
            reader = groups[found.container_id] = GroupReader(
                ContainerId(found.container_id),
                parse_scheme(found.scheme),
                found.replicas,
                self.peer,
                self._executor(),
            )
        block = span.location
        try:
            yield from reader.read(
                BlockId(block.block_id.local_id), block.length, span.start, span.stop
            )
        finally:
            self.degraded.update(reader.account.replaced)
            for index in reader.absent:
                self.degraded.setdefault(f"shard {index}", "no datanode gives it")

    def _executor(self) -> ThreadPoolExecutor:
        """Return the thread pool that fetches cells of erasure-coded blocks. It is created on first
        use."""
        with self._lock:
            if self.is_closed:
                raise ChannelClosed
            if self._cells is None:
                self._cells = ThreadPoolExecutor(SHARDS_MAX, thread_name_prefix="cell")
            return self._cells

    def _stream(self, datanode: NodeAddress) -> Open:
        return self.block_peer(datanode).begin_blocks

    def _dial(self, datanode: NodeAddress) -> Stub:
        return self.block_peer(datanode).stub


def containers_of(stored: Sequence[StoredFile]) -> list[int]:
    """Return the ids of the containers that have blocks of these files, in ascending order."""
    return sorted({b.block_id.container_id for item in stored for b in item.blocks})


def rotate_replicas(replicas: Sequence[T], equal_count: int, block_id: int) -> list[T]:
    """Return the replicas in the order in which a reader should ask them for a block.

    The first `equal_count` replicas are equally good. The id of the block determines which of them
    is the first. Therefore, all clients ask the same replica for a block, and its page cache
    contains the block.
    """
    if equal_count < 2:
        return list(replicas)
    equal = replicas[:equal_count]
    first = block_id % len(equal)
    return [*equal[first:], *equal[:first], *replicas[equal_count:]]


def _ended(
    futures: "Sequence[Future[None]]", sessions: Sequence[WriterSession]
) -> "set[Future[None]]":
    """Wait until all futures have ended, or one has failed. Return the ended futures.

    During the wait, renew the writer sessions at the control plane, so that they do not expire.
    """
    while True:
        patience_s = min((session.state.renew_s for session in sessions), default=None)
        done, pending = wait(futures, patience_s, FIRST_EXCEPTION)
        if not pending or any(future.exception() is not None for future in done):
            return done
        for session in sessions:
            session.renew()
