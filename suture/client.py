"""Stores and fetches keys, each call to its end; `suture.aio` has the same for asyncio."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Self, TypeAlias

from agent.client.client import Client as ClusterClient
from agent.client.download import write_whole
from agent.client.file_pieces import Source
from agent.client.keylist import OK, delete_keys, key_fault, key_pages
from agent.client.spool import Spool
from agent.ec.scheme import parse_scheme
from agent.errors import Code, Refused, Unavailable
from agent.rpc.security.tls import files_of, secured
from agent.rpc.v1 import scm_pb2
from suture.errors import by_kind

Content: TypeAlias = bytes | bytearray | memoryview | os.PathLike[str] | IO[bytes]
"""What can be stored: bytes, the file at a path, or what a file object has from where it stands."""

Pieces: TypeAlias = Generator[bytes, None, None]
Progress: TypeAlias = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """A key that is stored. It `is_lost` if a container that holds some of it was given up."""

    key: str
    size_bytes: int
    created_at: datetime
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """A key as it was just stored: durable on `replicas_min` datanodes or more."""

    key: str
    size_bytes: int
    replicas_min: int


class Client:
    """One cluster, through its control plane. Use as a context manager. Many threads may call.

    All methods raise what `suture.errors` lists. What is read was verified, every byte; what is
    damaged in one replica comes from another.
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
        """`scm`: host:port of the control plane. The three PEM files go together, and are read
        again when they change; without them only this machine is called, unless `allow_plaintext`.

        Nobody is called yet. Raises Refused(INVALID_CONFIG) naming the file that is wrong.
        """
        named = {"certificate": tls_certificate, "key": tls_key, "ca": tls_ca}
        files = files_of(
            **{what: None if one is None else Path(one) for what, one in named.items()}
        )
        self._cluster = ClusterClient(scm, security=secured(files, allow_plaintext=allow_plaintext))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. What is under way in other threads fails with Unavailable, and so
        does what is called later; a key that was being stored is there whole or not at all."""
        self._cluster.close()

    def put(
        self,
        key: str,
        content: Content,
        *,
        replace: bool = False,
        replication: str = "",
        progress: Progress = lambda _: None,
    ) -> Stored:
        """Store `content` under `key`, durably, and return when it is. Raises KeyExists.

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
    ) -> "tuple[Stored, ...]":
        """Store many keys, some at a time; return them in the order given.

        `replication` names an erasure code, as rs-6-3-1024k; else each replica is a whole copy.
        The first failure stops the rest, and keys that were stored stay. While the control plane
        restarts it is waited for, up to two minutes. `progress` hears from several threads how many
        bytes have gone out, and of fewer than none when they go out again; what it raises stops it.
        """
        scheme = parse_scheme(replication) if replication else None
        with Spool() as spool, self._asked():
            sources = [_source(key, content, spool) for key, content in contents.items()]
            stored, _ = self._cluster.put(
                sources, replace=replace, scheme=scheme, progress=progress
            )
        found = {one.key: Stored(one.key, one.size_bytes, one.replicas_min) for one in stored}
        return tuple(found[key] for key in contents)

    def get(self, key: str, *, start: int = 0, stop: int | None = None) -> bytes:
        """Return what is stored under `key`, or its bytes from `start` to before `stop`.

        As of a slice, what lies behind the end is left out. Blocks outside are not read.
        """
        return b"".join(self.stream(key, start=start, stop=stop))

    def stream(self, key: str, *, start: int = 0, stop: int | None = None) -> Pieces:
        """Yield the same in pieces of at most a few MiB; the datanodes send a little ahead.

        Raises KeyNotFound here, before the first piece is taken.
        """
        if start < 0 or (stop is not None and stop < start):
            raise ValueError(f"not a range of bytes: {start} to {stop}")
        return self._pieces(self._found(key), start, stop)

    def download(
        self, key: str, path: str | os.PathLike[str], *, progress: Progress = lambda _: None
    ) -> None:
        """Write what is stored under `key` to a file, which is there whole and durable, or as it
        was before. `progress` hears of bytes that were written; what it raises stops it."""

        def told() -> Iterator[bytes]:
            for piece in self.stream(key):
                yield piece
                progress(len(piece))

        write_whole(Path(path), told())

    def list(self, prefix: str = "") -> Iterator[KeyInfo]:
        """Yield the keys that begin with `prefix`, by name; asks for up to a thousand at a time."""
        for page in self.pages(prefix):
            yield from page

    def pages(self, prefix: str = "") -> Generator[tuple[KeyInfo, ...], None, None]:
        """Yield the same as they come: page by page."""
        if fault := key_fault(prefix, is_beginning=True):
            raise ValueError(f"no key begins so: {prefix!r} {fault}")
        with self._asked():
            for page in key_pages(self._cluster.scm, prefix):
                yield tuple(_info(key) for key in page)

    def info(self, key: str) -> KeyInfo:
        """Return what is known of a key. Raises KeyNotFound."""
        return _info(self._found(key).key)

    def delete(self, key: str) -> None:
        """Delete a key; datanodes delete its blocks in the background. Raises KeyNotFound.

        While the control plane restarts it is waited for, up to two minutes. What somebody stores
        under the key meanwhile stays.
        """
        with self._asked():
            (deletion,) = delete_keys(self._cluster.scm, [_checked(key)])
            if deletion.code != OK:
                raise Refused(Code(deletion.code), f"no such key: {key}")

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Raise what the body raises, as what callers distinguish, and what is left of its call
        where the client was closed as just that."""
        try:
            with by_kind():
                yield
        except (Unavailable, CancelledError, RuntimeError) as error:  # the last of closed threads
            if not self._cluster.is_closed:
                raise
            facts = error.facts if isinstance(error, Unavailable) else {}
            raise closed(**facts) from error

    def _found(self, key: str) -> scm_pb2.LookupKeyResponse:
        with self._asked():
            return self._cluster.find(_checked(key))

    def _pieces(self, found: scm_pb2.LookupKeyResponse, start: int, stop: int | None) -> Pieces:
        with self._asked():
            for piece in self._cluster.read(found, start=start, stop=stop):
                yield bytes(piece)


def closed(**facts: str) -> Unavailable:
    """Return what a call ends with whose client was closed."""
    return Unavailable(Code.UNAVAILABLE, "the client was closed", **facts)


def _checked(key: str) -> str:
    if fault := key_fault(key):
        raise ValueError(f"not the name of a key: {key!r} {fault}")
    return key


def _info(key: scm_pb2.KeyInfo) -> KeyInfo:
    created_at = datetime.fromtimestamp(key.created_at_ms / 1000, UTC)
    return KeyInfo(key.key, key.size, created_at, is_lost=bool(key.lost_container_ids))


def _source(key: str, content: Content, spool: Spool) -> Source:
    """Return a source that can be read more than once; its copy, if any, is in `spool`."""
    _checked(key)
    if isinstance(content, bytes | bytearray | memoryview):
        data = bytes(content)
        return Source(key, Path(key), len(data), data)
    if isinstance(content, os.PathLike):
        return spool.file(key, Path(content))
    if not hasattr(content, "read"):
        raise TypeError(
            f"cannot store a {type(content).__name__} under {key}: give bytes, a pathlib.Path or "
            "a file opened for reading bytes"
        )
    return spool.stream(key, content)
