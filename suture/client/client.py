"""The synchronous client, which stores and reads keys. `async_client` has the same methods for
asyncio."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Self, TypeAlias

from suture.client.cluster_client import ClusterClient as ClusterClient
from suture.client.download import write_whole
from suture.client.file_pieces import SourceFile
from suture.client.key_listing import OK, delete_keys, key_fault, key_pages
from suture.client.spool import Spool
from suture.ec.scheme import parse_scheme
from suture.errors import Code, RefusedError, UnavailableError, by_kind
from suture.wire.security.tls import files_of, load_security
from suture.wire.v1 import scm_pb2

Content: TypeAlias = bytes | bytearray | memoryview | os.PathLike[str] | IO[bytes]
"""The contents to store: bytes, the path of a file, or a file object, which is read to its end."""

Pieces: TypeAlias = Generator[bytes, None, None]
Progress: TypeAlias = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A stored key. `is_lost` is True if an operator has marked a container with some of the key's
    blocks as lost."""

    key: str
    size_bytes: int
    created_at: datetime
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class PutResult:
    """The result of a put. Each block of the key is durable on at least `replicas_min`
    datanodes."""

    key: str
    size_bytes: int
    replicas_min: int


class Client:
    """Client of a cluster. Use it as a context manager. Thread-safe.

    All methods raise the errors of `suture.errors`. The client verifies every byte that it reads.
    If a replica is damaged, the client reads another replica.
    """

    def __init__(
        self,
        scm: str,
        *,
        tls_certificate: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        allow_plaintext: bool = False,
    ) -> None:
        """Create a client. `scm` is the host:port of the control plane.

        The three PEM files must be given together. They are loaded again when they change. Without
        them, the client calls only addresses of this machine, unless `allow_plaintext` is True. The
        constructor does not connect. Raise RefusedError(INVALID_CONFIG) if a file is invalid.
        """
        named = {"certificate": tls_certificate, "key": tls_key, "ca": tls_ca}
        files = files_of(
            **{what: None if one is None else Path(one) for what, one in named.items()}
        )
        self._cluster = ClusterClient(
            scm, security=load_security(files, allow_plaintext=allow_plaintext)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Running calls of other threads and later calls raise
        UnavailableError.

        An interrupted put has stored its key either completely or not at all.
        """
        self._cluster.close()

    def put(
        self,
        key: str,
        content: Content,
        *,
        replace: bool = False,
        replication: str = "",
        progress: Progress = lambda _: None,
    ) -> PutResult:
        """Store `content` under `key`, and return when it is durable.

        Raise KeyExists if the key exists and `replace` is False. The options are those of
        `put_many`.
        """
        (stored,) = self.put_many(
            {key: content}, replace=replace, replication=replication, progress=progress
        )
        return stored

    def put_many(
        self,
        contents: Mapping[str, Content],
        *,
        replace: bool = False,
        replication: str = "",
        progress: Progress = lambda _: None,
    ) -> "tuple[PutResult, ...]":
        """Store many keys, several at the same time. Return the results in the order of `contents`.

        `replication` names an erasure code, such as rs-6-3-1024k; by default, each replica is a
        complete copy. After the first failure, no more keys are stored; keys that are already
        stored remain. If the control plane restarts, the call waits up to two minutes.

        `progress` is called by several threads with the number of bytes sent. The number is
        negative if bytes have to be sent again. If `progress` raises an exception, the call stops.
        """
        scheme = parse_scheme(replication) if replication else None
        with Spool() as spool, self._asked():
            sources = [_source(key, content, spool) for key, content in contents.items()]
            stored, _ = self._cluster.put(
                sources, replace=replace, scheme=scheme, progress=progress
            )
        found = {one.key: PutResult(one.key, one.size_bytes, one.replicas_min) for one in stored}
        return tuple(found[key] for key in contents)

    def get(self, key: str, *, start: int = 0, stop: int | None = None) -> bytes:
        """Return the contents of `key`, or its bytes from `start` up to, but not including, `stop`.

        As with slices, positions beyond the end are ignored. The client reads only the blocks in
        the range.
        """
        return b"".join(self.stream(key, start=start, stop=stop))

    def stream(self, key: str, *, start: int = 0, stop: int | None = None) -> Pieces:
        """Yield the contents of `key`, as `get` returns them, in pieces of at most a few MiB.

        The datanodes send some data ahead of the consumer. KeyNotFound is raised when the method is
        called, not when the first piece is requested.
        """
        if start < 0 or (stop is not None and stop < start):
            raise ValueError(f"invalid range of bytes: {start} to {stop}")
        return self._pieces(self._look_up(key), start, stop)

    def download(
        self, key: str, path: str | os.PathLike[str], *, progress: Progress = lambda _: None
    ) -> None:
        """Write the contents of `key` to a file. The file is either complete and durable, or
        unchanged.

        `progress` is called with the number of bytes written. If it raises an exception, the call
        stops.
        """

        def pieces() -> Iterator[bytes]:
            for piece in self.stream(key):
                yield piece
                progress(len(piece))

        write_whole(Path(path), pieces())

    def list(self, prefix: str = "") -> Iterator[KeyInfo]:
        """Yield the keys that begin with `prefix`, sorted by name. One request returns up to a
        thousand keys."""
        for page in self.pages(prefix):
            yield from page

    def pages(self, prefix: str = "") -> Generator[tuple[KeyInfo, ...], None, None]:
        """Yield the keys that begin with `prefix`, sorted by name, in tuples with the keys of one
        request."""
        if fault := key_fault(prefix, is_beginning=True):
            raise ValueError(f"invalid prefix {prefix!r}: it {fault}")
        with self._asked():
            for page in key_pages(self._cluster.scm, prefix):
                yield tuple(_info(key) for key in page)

    def info(self, key: str) -> KeyInfo:
        """Return the size, the time and the state of a key. Raise KeyNotFound if there is no such
        key."""
        return _info(self._look_up(key).key)

    def delete(self, key: str) -> None:
        """Delete a key. Raise KeyNotFound if there is no such key.

        The datanodes delete the blocks of the key in the background. If the control plane restarts,
        the call waits up to two minutes. If another client stores a key with the same name in the
        meantime, the new key is not deleted.
        """
        with self._asked():
            (deletion,) = delete_keys(self._cluster.scm, [_checked(key)])
            if deletion.code != OK:
                raise RefusedError(Code(deletion.code), f"no such key: {key}")

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Convert the errors that are raised in the `with` block to public errors.

        A SutureError is raised as its public subclass, such as KeyNotFound, if it has one. If the
        client was closed, the error for a closed client is raised.
        """
        try:
            with by_kind():
                yield
        except (
            UnavailableError,
            CancelledError,
            RuntimeError,
        ) as error:  # RuntimeError if a thread pool was closed
            if not self._cluster.is_closed:
                raise
            facts = error.facts if isinstance(error, UnavailableError) else {}
            raise closed(**facts) from error

    def _look_up(self, key: str) -> scm_pb2.LookupKeyResponse:
        with self._asked():
            return self._cluster.find(_checked(key))

    def _pieces(self, found: scm_pb2.LookupKeyResponse, start: int, stop: int | None) -> Pieces:
        with self._asked():
            for piece in self._cluster.read(found, start=start, stop=stop):
                yield bytes(piece)


def closed(**facts: str) -> UnavailableError:
    """Return the error that a call on a closed client raises."""
    return UnavailableError(Code.UNAVAILABLE, "the client was closed", **facts)


def _checked(key: str) -> str:
    if fault := key_fault(key):
        raise ValueError(f"invalid key {key!r}: it {fault}")
    return key


def _info(key: scm_pb2.KeyInfo) -> KeyInfo:
    created_at = datetime.fromtimestamp(key.created_at_ms / 1000, UTC)
    return KeyInfo(key.key, key.size, created_at, is_lost=bool(key.lost_container_ids))


def _source(key: str, content: Content, spool: Spool) -> SourceFile:
    """Return the content as a source that can be read more than once. Content that can be read only
    once is first copied to `spool`."""
    _checked(key)
    if isinstance(content, bytes | bytearray | memoryview):
        data = bytes(content)
        return SourceFile(key, Path(key), len(data), data)
    if isinstance(content, os.PathLike):
        return spool.file(key, Path(content))
    if not hasattr(content, "read"):
        raise TypeError(
            f"cannot store a {type(content).__name__} under {key}: give bytes, a pathlib.Path or "
            "a file opened for reading bytes"
        )
    return spool.stream(key, content)
