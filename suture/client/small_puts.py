"""Stores the small files of many threads together in batches (like the group commit of databases).

A put waits in a queue. If no batch is being written, one thread takes the waiting puts and stores
them with one session. A single waiting put is stored at once. Puts that arrive during a batch are
stored in the next batch. Each caller then gets its own result.

After a batch, the next batch begins after a short pause, so that the threads whose files were just
stored can add their next files. Otherwise, the threads would split into two halves that are stored
alternately. If a batch fails because of one key, only the put of that key fails.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Condition
from typing import Final

from suture.client.block_messages import MESSAGE_BYTES_MAX, RUN_BYTES_MAX
from suture.client.file_pieces import SourceFile
from suture.client.session_pool import ALLOCATION_BATCH, SessionPool, end_session
from suture.client.writer import LOOK_S, StoredFile, Waits, WriterSession
from suture.errors import SutureError, UnavailableError
from suture.wire.clients.channel import ChannelClosed

GATHER_S: Final = 0.002  # pause for the threads just served; 10 % of a batch's time
SMALL_BYTES_MAX: Final = MESSAGE_BYTES_MAX  # a longer file would delay the others of its batch


@dataclass(eq=False, slots=True)
class _Put:
    """A put that is waiting in the queue or is being stored."""

    source: SourceFile
    replace: bool
    progress: Callable[[int], None]
    waits: Waits
    stored: "Future[StoredFile]" = field(default_factory=Future)
    session: WriterSession | None = None  # the session that stores it
    is_reported: bool = True  # the session calls `progress`
    is_alone: bool = False  # its batch failed, so it is retried alone
    is_abandoned: bool = False  # its caller no longer waits for it


class SmallPuts:
    """Stores small files of several threads in batches. Thread-safe."""

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool
        self._waiting: list[_Put] = []
        self._under_way: list[_Put] = []  # one batch: two would be smaller, at the same cost each
        self._thread: ThreadPoolExecutor | None = None  # created on first use
        self._is_closed = False
        self._lock = Condition()  # protects the fields above

    def put(
        self,
        source: SourceFile,
        *,
        replace: bool,
        progress: Callable[[int], None],
        waits: Waits,
    ) -> StoredFile:
        """Store a file. Return when its key is committed."""
        put = _Put(source, replace, progress, waits)
        self._enqueue(put)
        try:
            return self._awaited(put)
        except BaseException:
            self._abandon(put)
            raise

    def close(self) -> None:
        """Let the waiting puts fail. Stop the puts in progress before their next step."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, []
            _stop(self._under_way)
            self._lock.notify_all()
        for put in waiting:
            put.stored.set_exception(ChannelClosed())
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    def _enqueue(self, put: _Put) -> None:
        with self._lock:
            if self._is_closed:
                raise ChannelClosed
            self._waiting.append(put)
            self._lock.notify_all()
        self._begin()

    def _begin(self) -> None:
        """Begin the next batch, unless a batch is being stored or no put is waiting."""
        with self._lock:
            if self._under_way or not self._waiting:
                return
            self._under_way = batch = _first_batch(self._waiting)
            self._waiting = [put for put in self._waiting if put not in batch]
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="small-puts")
            done = self._thread.submit(self._put_in_session, batch)
        done.add_done_callback(self._publish_results)

    def _publish_results(self, done: "Future[list[StoredFile]]") -> None:
        """Pass the result to the caller of each put of a batch. If the batch failed because of one
        of its puts, queue each put again as a batch of its own."""
        error = done.exception()
        with self._lock:
            batch = self._under_way
            is_repeated = not (error is None or isinstance(error, UnavailableError))
            is_repeated = is_repeated and len(batch) > 1 and not self._is_closed
            if is_repeated:
                for put in batch:
                    put.is_alone, put.session = True, None
                self._waiting = [*batch, *self._waiting]
            expected_count = len(self._waiting) + len(batch)
        if error is None:
            for put, stored in zip(batch, done.result(), strict=True):
                put.stored.set_result(stored)
        elif not is_repeated:
            for put in batch:
                put.stored.set_exception(_error_of(put, error, len(batch)))
        with self._lock:
            if expected_count > 1 and not is_repeated:  # a single put never waits here
                self._lock.wait_for(
                    lambda: self._is_closed or len(self._waiting) >= expected_count, GATHER_S
                )
            self._under_way = []
        self._begin()

    def _awaited(self, put: _Put) -> StoredFile:
        """Wait for the result of a put and return it. During the wait, renew the session at the
        control plane."""
        while True:
            session = put.session
            if wait([put.stored], LOOK_S if session is None else session.state.renew_s).done:
                break
            if session is not None:
                session.renew()
        stored = put.stored.result()
        if not put.is_reported:
            put.progress(stored.size_bytes)
        return stored

    def _abandon(self, put: _Put) -> None:
        """Record that the caller of a put no longer waits. If no caller waits for any put of the
        current batch, stop the batch."""
        with self._lock:
            put.is_abandoned = True
            if put in self._waiting:
                self._waiting.remove(put)
            if all(one.is_abandoned for one in self._under_way):
                _stop(self._under_way)

    def _put_in_session(self, batch: Sequence[_Put]) -> list[StoredFile]:
        is_alone = len(batch) == 1
        session = self._pool.acquire(
            None, batch[0].progress if is_alone else _ignore, lambda error: _report(batch, error)
        )
        with self._lock:
            for put in batch:
                put.session, put.is_reported = session, is_alone
            session.stopped = self._is_closed or all(put.is_abandoned for put in batch)
        try:
            stored = session.put([put.source for put in batch], replace=batch[0].replace)
        except BaseException:
            end_session(session, close=False)
            raise
        self._pool.release(session)
        return stored


def is_small(source: SourceFile) -> bool:
    """Return True if a file is small enough to be stored in a batch with other files."""
    return source.size_bytes <= SMALL_BYTES_MAX


def _first_batch(waiting: Sequence[_Put]) -> list[_Put]:
    """Return the first waiting put and the later puts that can be committed together with it.

    A batch has at most one put of each key, and at most as many bytes as one stream to a datanode
    carries.
    """
    if waiting[0].is_alone:
        return [waiting[0]]
    batch: dict[str, _Put] = {}
    left_bytes = RUN_BYTES_MAX
    for put in waiting:
        left_bytes -= put.source.size_bytes
        if left_bytes < 0 or len(batch) == ALLOCATION_BATCH:
            break
        if put.replace == waiting[0].replace:
            batch.setdefault(put.source.key, put)
    return list(batch.values())


def _stop(batch: Sequence[_Put]) -> None:
    for put in batch:
        if put.session is not None:
            put.session.stopped = True


def _report(batch: Sequence[_Put], error: SutureError) -> None:
    for put in batch:
        put.waits(error)


def _ignore(_sent_bytes: int) -> None:
    """Ignore the progress of a batch. Each put of a batch reports its own bytes at the end."""


def _error_of(put: _Put, error: BaseException, count: int) -> BaseException:
    """Return the error that the caller of `put` raises after its batch of `count` puts has
    failed."""
    if count == 1 or not isinstance(error, UnavailableError):
        return error
    message = f"cannot store {put.source.key}, sent with {count - 1} others: {error}"
    own = UnavailableError(error.code, message, hint=error.hint, **error.facts)
    own.__cause__ = error
    return own
