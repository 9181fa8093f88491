"""Stores and fetches keys, each call to its end. `async_client` has the same for asyncio."""

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
"""Contents to store: bytes, the file at a path, or the rest of a file object."""

Pieces: TypeAlias = Generator[bytes, None, None]
Progress: TypeAlias = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A stored key. It `is_lost` if a container with some of its blocks was given up."""

    key: str
    size_bytes: int
    created_at: datetime
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class PutResult:
    """A key that was just stored: durable on at least `replicas_min` datanodes."""

    key: str
    size_bytes: int
    replicas_min: int


class Client:
    """A cluster, through its control plane. Use as a context manager. Thread-safe.

    All methods raise the errors of `suture.errors`. Every byte that is read is verified; if one
    replica is damaged, another one is read.
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
        """`scm`: host:port of the control plane. The three PEM files go together, and are reloaded
        when they change; without them only this machine is called, unless `allow_plaintext`.

        Does not connect yet. Raise RefusedError(INVALID_CONFIG) naming an invalid file.
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
        """Close every connection. Running calls of other threads and later calls fail with
        UnavailableError; a key that was being stored is complete or absent.
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
        """Store `content` under `key`, and return when it is durable. Raise KeyExists.

        See `put_many`.
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
        """Store many keys, some at a time; return them in the given order.

        `replication` names an erasure code, such as rs-6-3-1024k; by default each replica is a
        whole copy. The first failure stops the rest, and keys already stored stay. A restart of the
        control plane is waited out, up to two minutes. `progress` receives, from several threads,
        the number of bytes sent, and a negative number when they are sent again; an exception in it
        stops the call.
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
        """Return the contents of `key`, or its bytes from `start` to before `stop`.

        As with slices, positions beyond the end are ignored. Blocks outside of the range are not
        read.
        """
        return b"".join(self.stream(key, start=start, stop=stop))

    def stream(self, key: str, *, start: int = 0, stop: int | None = None) -> Pieces:
        """Yield the same in pieces of at most a few MiB; the datanodes send a little ahead.

        Raise KeyNotFound here, before the first piece is taken.
        """
        if start < 0 or (stop is not None and stop < start):
            raise ValueError(f"invalid range of bytes: {start} to {stop}")
        return self._pieces(self._found(key), start, stop)

    def download(
        self, key: str, path: str | os.PathLike[str], *, progress: Progress = lambda _: None
    ) -> None:
        """Write the contents of `key` to a file, which is then complete and durable, or unchanged.
        `progress` receives the number of bytes written; an exception in it stops the call.
        """

        def pieces() -> Iterator[bytes]:
            for piece in self.stream(key):
                yield piece
                progress(len(piece))

        write_whole(Path(path), pieces())

    def list(self, prefix: str = "") -> Iterator[KeyInfo]:
        """Yield the keys that begin with `prefix`, by name; fetches up to a thousand at a time."""
        for page in self.pages(prefix):
            yield from page

    def pages(self, prefix: str = "") -> Generator[tuple[KeyInfo, ...], None, None]:
        """Yield the same page by page."""
        if fault := key_fault(prefix, is_beginning=True):
            raise ValueError(f"invalid prefix {prefix!r}: it {fault}")
        with self._asked():
            for page in key_pages(self._cluster.scm, prefix):
                yield tuple(_info(key) for key in page)

    def info(self, key: str) -> KeyInfo:
        """Return the facts of a key. Raise KeyNotFound."""
        return _info(self._found(key).key)

    def delete(self, key: str) -> None:
        """Delete a key; datanodes delete its blocks in the background. Raise KeyNotFound.

        A restart of the control plane is waited out, up to two minutes. A key that another client
        stores under this name meanwhile stays.
        """
        with self._asked():
            (deletion,) = delete_keys(self._cluster.scm, [_checked(key)])
            if deletion.code != OK:
                raise RefusedError(Code(deletion.code), f"no such key: {key}")

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Convert errors of the body to those that callers distinguish; if the client was closed,
        to that error.
        """
        try:
            with by_kind():
                yield
        except (
            UnavailableError,
            CancelledError,
            RuntimeError,
        ) as error:  # RuntimeError: a closed pool
            if not self._cluster.is_closed:
                raise
            facts = error.facts if isinstance(error, UnavailableError) else {}
            raise closed(**facts) from error

    def _found(self, key: str) -> scm_pb2.LookupKeyResponse:
        with self._asked():
            return self._cluster.find(_checked(key))

    def _pieces(self, found: scm_pb2.LookupKeyResponse, start: int, stop: int | None) -> Pieces:
        with self._asked():
            for piece in self._cluster.read(found, start=start, stop=stop):
                yield bytes(piece)


def closed(**facts: str) -> UnavailableError:
    """Return the error of a call whose client was closed."""
    return UnavailableError(Code.UNAVAILABLE, "the client was closed", **facts)


def _checked(key: str) -> str:
    if fault := key_fault(key):
        raise ValueError(f"invalid key {key!r}: it {fault}")
    return key


def _info(key: scm_pb2.KeyInfo) -> KeyInfo:
    created_at = datetime.fromtimestamp(key.created_at_ms / 1000, UTC)
    return KeyInfo(key.key, key.size, created_at, is_lost=bool(key.lost_container_ids))


def _source(key: str, content: Content, spool: Spool) -> SourceFile:
    """Return a source that can be read more than once; a copy, if needed, is in `spool`."""
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
