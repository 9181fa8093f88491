"""The asyncio client. Its calls run in threads of the client, never in the event loop's thread.

A cancelled task ends at once. A read stops: the call to the datanode ends with the current piece. A
store or download stops before its next piece, and has either completed or left nothing behind. If
the cancellation came at the end of a store, `info` shows whether the key exists.
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
    """The options of `suture.Client` besides the address of the control plane."""

    tls_certificate: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    tls_ca: str | os.PathLike[str] | None
    allow_plaintext: bool


class AsyncClient:
    """Client of a cluster for asyncio. Use as an async context manager, in one event loop.

    The methods are those of `suture.Client`. Where a method of `suture.Client` yields, use `async
    for`.
    """

    def __init__(self, scm: str, **options: Unpack[ClientOptions]) -> None:
        """Take the arguments and options of `suture.Client`."""
        self._client = Client(scm, **options)
        self._pool = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="suture")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Waiting and later calls fail with UnavailableError."""
        await asyncio.to_thread(self._client.close)
        self._pool.shutdown(wait=False)

    async def put(
        self, key: str, content: Content, *, replace: bool = False, replication: str = ""
    ) -> PutResult:
        """Store `content` under `key`, durably. Raise KeyExists if the key exists and `replace` is
        False."""
        (stored,) = await self.put_many({key: content}, replace=replace, replication=replication)
        return stored

    async def put_many(
        self, contents: Mapping[str, Content], *, replace: bool = False, replication: str = ""
    ) -> tuple[PutResult, ...]:
        """Store many keys, several at the same time; return the results in the given order."""

        def put(progress: Progress) -> tuple[PutResult, ...]:
            return self._client.put_many(
                contents, replace=replace, replication=replication, progress=progress
            )

        return await self._stoppable(put)

    async def get(self, key: str, *, start: int = 0, stop: int | None = None) -> bytes:
        """Return the contents of `key`, or its bytes from `start` to before `stop`."""
        async with aclosing(self.stream(key, start=start, stop=stop)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def stream(
        self, key: str, *, start: int = 0, stop: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the contents of `key` as `get` returns them, in pieces of at most a few MiB."""
        opened = await self._run(lambda: self._client.stream(key, start=start, stop=stop))
        async with aclosing(self._each(opened)) as pieces:
            async for piece in pieces:
                yield piece

    async def download(self, key: str, path: str | os.PathLike[str]) -> None:
        """Write the contents of `key` to a file. Afterwards the file is complete, or unchanged."""

        def download(progress: Progress) -> None:
            self._client.download(key, path, progress=progress)

        await self._stoppable(download)

    async def list(self, prefix: str = "") -> AsyncGenerator[KeyInfo, None]:
        """Yield the keys that begin with `prefix`, by name."""
        async with aclosing(self._each(self._client.pages(prefix))) as pages:
            async for page in pages:
                for info in page:
                    yield info

    async def info(self, key: str) -> KeyInfo:
        """Return size, time and state of a key. Raise KeyNotFound if there is no such key."""
        return await self._run(lambda: self._client.info(key))

    async def delete(self, key: str) -> None:
        """Delete a key. Raise KeyNotFound if there is no such key."""
        await self._run(lambda: self._client.delete(key))

    async def _each(self, source: Generator[T, None, None]) -> AsyncGenerator[T, None]:
        """Yield the items of `source`, and close it when the consumer stops."""
        steps = _Steps(source)
        try:
            while taken := await self._run(steps.next):
                yield taken[0]
        finally:
            with suppress(RuntimeError):  # the client was closed, which ended every call
                self._pool.submit(steps.close)  # runs after the current step and is not awaited

    async def _stoppable(self, work: Callable[[Progress], T]) -> T:
        """Run `work` with a progress callback. When the task is cancelled, the callback raises an
        exception, which stops the work."""
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
    """An iterator that one thread advances and that another thread may close at the same time."""

    def __init__(self, source: Generator[T, None, None]) -> None:
        self._source = source
        self._lock = Lock()

    def next(self) -> tuple[T, ...]:
        """Return the next item in a tuple; an empty tuple at the end."""
        with self._lock:
            for item in self._source:
                return (item,)
            return ()

    def close(self) -> None:
        """Close the iterator, once no step is running."""
        with self._lock:
            self._source.close()
