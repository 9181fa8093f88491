"""The same for asyncio: calls wait in threads of the client's own, and never in the event loop's.

A task that is cancelled leaves at once. What it read is not read on: the call to the datanode ends
with the piece that is under way. What it stored or downloaded stops at the next piece, and is there
whole or not at all; whether a key is, if that was its last moment, `info` says.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from contextvars import copy_context
from threading import Event, Lock
from typing import Final, Generic, Self, TypedDict, TypeVar, Unpack

from agent.errors import Code, Unavailable
from suture.client import Client, Content, KeyInfo, Progress, Stored, closed

T = TypeVar("T")

CALLS_MAX: Final = 16  # that wait at the same time; more wait for their turn


class Options(TypedDict, total=False):
    """What `suture.Client` takes beside the address of the control plane."""

    tls_certificate: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    tls_ca: str | os.PathLike[str] | None
    allow_plaintext: bool


class AsyncClient:
    """One cluster, through its control plane. Use as an async context manager, in one event loop.

    Methods are those of `suture.Client`; what yields there is read by `async for` here.
    """

    def __init__(self, scm: str, **options: Unpack[Options]) -> None:
        """As `suture.Client`, with the same options."""
        self._client = Client(scm, **options)
        self._pool = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="suture")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. A call that waits fails with Unavailable, as does a later one."""
        await asyncio.to_thread(self._client.close)
        self._pool.shutdown(wait=False)

    async def put(
        self, key: str, content: Content, *, replace: bool = False, replication: str = ""
    ) -> Stored:
        """Store `content` under `key`, durably. Raises KeyExists."""
        (stored,) = await self.put_many({key: content}, replace=replace, replication=replication)
        return stored

    async def put_many(
        self, contents: Mapping[str, Content], *, replace: bool = False, replication: str = ""
    ) -> tuple[Stored, ...]:
        """Store many keys, some at a time; return them in the order given."""

        def put(progress: Progress) -> tuple[Stored, ...]:
            return self._client.put_many(
                contents, replace=replace, replication=replication, progress=progress
            )

        return await self._stoppable(put)

    async def get(self, key: str, *, start: int = 0, stop: int | None = None) -> bytes:
        """Return what is stored under `key`, or its bytes from `start` to before `stop`."""
        async with aclosing(self.stream(key, start=start, stop=stop)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def stream(
        self, key: str, *, start: int = 0, stop: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the same in pieces of at most a few MiB."""
        opened = await self._run(lambda: self._client.stream(key, start=start, stop=stop))
        async with aclosing(self._each(opened)) as pieces:
            async for piece in pieces:
                yield piece

    async def download(self, key: str, path: str | os.PathLike[str]) -> None:
        """Write what is stored under `key` to a file, which is there whole or as it was."""

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
        """Return what is known of a key. Raises KeyNotFound."""
        return await self._run(lambda: self._client.info(key))

    async def delete(self, key: str) -> None:
        """Delete a key. Raises KeyNotFound."""
        await self._run(lambda: self._client.delete(key))

    async def _each(self, source: Generator[T, None, None]) -> AsyncGenerator[T, None]:
        """Yield what `source` does, and close it when nobody reads on."""
        steps = _Steps(source)
        try:
            while taken := await self._run(steps.next):
                yield taken[0]
        finally:
            with suppress(RuntimeError):  # the client was closed, and with it every call
                self._pool.submit(steps.close)  # after the step under way, which nobody awaits

    async def _stoppable(self, work: Callable[[Progress], T]) -> T:
        """Run what hears of its progress; it stops there when the task is cancelled."""
        cancelled = Event()

        def heard(_: int) -> None:
            if cancelled.is_set():
                raise Unavailable(Code.CANCELLED, "the task was cancelled")

        try:
            return await self._run(lambda: work(heard))
        finally:
            cancelled.set()

    async def _run(self, work: Callable[[], T]) -> T:
        context = copy_context()
        loop = asyncio.get_running_loop()
        try:
            awaited = loop.run_in_executor(self._pool, lambda: context.run(work))
        except RuntimeError as error:  # of a pool that takes nothing more
            raise closed() from error
        return await awaited


class _Steps(Generic[T]):
    """An iterator that is advanced by one thread, and may be closed meanwhile by another."""

    def __init__(self, source: Generator[T, None, None]) -> None:
        self._source = source
        self._lock = Lock()

    def next(self) -> tuple[T, ...]:
        """Return what comes next, alone; nothing: that was all."""
        with self._lock:
            for item in self._source:
                return (item,)
            return ()

    def close(self) -> None:
        """End it, when no step is under way."""
        with self._lock:
            self._source.close()
