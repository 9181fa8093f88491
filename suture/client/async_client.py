"""The client for asyncio. Its calls run in threads, never in the thread of the event loop.

If a task is cancelled, it ends at once. A read then stops: its call to the datanode ends with the
current piece. A store or download stops before its next piece, and has been completed or has no
effect. If a store was cancelled shortly before its end, `info` shows whether the key exists.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from contextvars import copy_context
from threading import Event, Lock
from typing import Final, Generic, Self, TypedDict, TypeVar, Unpack

from suture.client.client import Client, Content, KeyInfo, Progress, PutResult, closed
from suture.errors import Code, UnavailableError

T = TypeVar("T")

CALLS_MAX: Final = 16  # calls that wait at the same time; others queue


class ClientOptions(TypedDict, total=False):
    """The options of `suture.Client`, without the address of the control plane."""

    tls_certificate: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    tls_ca: str | os.PathLike[str] | None
    allow_plaintext: bool


class AsyncClient:
    """Client of a cluster for asyncio. Use it as an async context manager, in one event loop.

    The methods are those of `suture.Client`. If a method of `suture.Client` is a generator, use
    `async for`.
    """

    def __init__(self, scm: str, **options: Unpack[ClientOptions]) -> None:
        """Create a client with the arguments and options of `suture.Client`."""
        self._client = Client(scm, **options)
        self._pool = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="suture")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Waiting calls and later calls raise UnavailableError."""
        await asyncio.to_thread(self._client.close)
        self._pool.shutdown(wait=False)

    async def put(
        self, key: str, content: Content, *, replace: bool = False, replication: str = ""
    ) -> PutResult:
        """Store `content` durably under `key`. Raise KeyExists if the key exists and `replace` is
        False."""
        (stored,) = await self.put_many({key: content}, replace=replace, replication=replication)
        return stored

    async def put_many(
        self, contents: Mapping[str, Content], *, replace: bool = False, replication: str = ""
    ) -> tuple[PutResult, ...]:
        """Store many keys, several at the same time. Return the results in the order of
        `contents`."""

        def put(progress: Progress) -> tuple[PutResult, ...]:
            return self._client.put_many(
                contents, replace=replace, replication=replication, progress=progress
            )

        return await self._stoppable(put)

    async def get(self, key: str, *, start: int = 0, stop: int | None = None) -> bytes:
        """Return the contents of `key`, or its bytes from `start` up to, but not including,
        `stop`."""
        async with aclosing(self.stream(key, start=start, stop=stop)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def stream(
        self, key: str, *, start: int = 0, stop: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the contents of `key`, as `get` returns them, in pieces of at most a few MiB."""
        opened = await self._run(lambda: self._client.stream(key, start=start, stop=stop))
        async with aclosing(self._each(opened)) as pieces:
            async for piece in pieces:
                yield piece

    async def download(self, key: str, path: str | os.PathLike[str]) -> None:
        """Write the contents of `key` to a file. The file is either complete or unchanged, even
        after an error."""

        def download(progress: Progress) -> None:
            self._client.download(key, path, progress=progress)

        await self._stoppable(download)

    async def list(self, prefix: str = "") -> AsyncGenerator[KeyInfo, None]:
        """Yield the keys that begin with `prefix`, sorted by name."""
        async with aclosing(self._each(self._client.pages(prefix))) as pages:
            async for page in pages:
                for info in page:
                    yield info

    async def info(self, key: str) -> KeyInfo:
        """Return the size, the time and the state of a key. Raise KeyNotFound if there is no such
        key."""
        return await self._run(lambda: self._client.info(key))

    async def delete(self, key: str) -> None:
        """Delete a key. Raise KeyNotFound if there is no such key."""
        await self._run(lambda: self._client.delete(key))

    async def _each(self, source: Generator[T, None, None]) -> AsyncGenerator[T, None]:
        """Yield the items of `source`. Close `source` when the consumer stops."""
        steps = _Steps(source)
        try:
            while taken := await self._run(steps.next):
                yield taken[0]
        finally:
            with suppress(RuntimeError):  # the client was closed, which ended every call
                self._pool.submit(steps.close)  # runs after the current step and is not awaited

    async def _stoppable(self, work: Callable[[Progress], T]) -> T:
        """Run `work` in a thread, with a callback for its progress.

        If the task is cancelled, the next call of the callback raises an exception, which stops the
        work.
        """
        cancelled = Event()

        def note_progress(_: int) -> None:
            if cancelled.is_set():
                raise UnavailableError(Code.CANCELLED, "the task was cancelled")

        try:
            return await self._run(lambda: work(note_progress))
        finally:
            cancelled.set()

    async def _run(self, work: Callable[[], T]) -> T:
        context = copy_context()
        loop = asyncio.get_running_loop()
        try:
            awaited = loop.run_in_executor(self._pool, lambda: context.run(work))
        except RuntimeError as error:  # the pool was closed
            raise closed() from error
        return await awaited


class _Steps(Generic[T]):
    """A generator that one thread advances, and that another thread may close at the same time."""

    def __init__(self, source: Generator[T, None, None]) -> None:
        self._source = source
        self._lock = Lock()

    def next(self) -> tuple[T, ...]:
        """Return a tuple with the next item, or an empty tuple at the end."""
        with self._lock:
            for item in self._source:
                return (item,)
            return ()

    def close(self) -> None:
        """Wait until no thread is in `next`, then close the generator."""
        with self._lock:
            self._source.close()
