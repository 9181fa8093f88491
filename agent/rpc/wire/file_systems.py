"""Files and directories of any file system, named by a path or an address.

    /var/lib/x   file:///var/lib/x   s3://bucket/x   s3a://bucket/x
    hdfs://name:8020/x

A place is given to other processes as its text and opened there: credentials come from each
machine's environment, and an address that holds any is refused, because addresses are printed. What
an address needs beside stands in its query: `s3://bucket/x?endpoint_override=host:9000&scheme=http`.

What is created appears whole or not at all: on a disk and in HDFS, where a file that grows is seen,
by renaming; in a store because an object is there when its last byte is.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from agent.errors import Code, Refused

SAME: Final = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names of what has another one here."""

LOCAL: Final = "file"

HDFS: Final = frozenset({"hdfs", "viewfs"})
"""Spoken by libhdfs, which comes with Hadoop and asks for its jars."""

UNUSABLE: Final = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    OSError,  # libhdfs is not here
    ImportError,  # nor fsspec
    ValueError,  # a port that is no number, a token beside a name
    TypeError,  # a query with an option that Arrow does not know
)
"""How a file system says that it cannot be used as it is asked for."""

HINTS: Final = {
    "hdfs": "it needs Hadoop's libhdfs and jars (HADOOP_HOME, CLASSPATH)",
    "viewfs": "it needs Hadoop's libhdfs and jars (HADOOP_HOME, CLASSPATH)",
    "s3": "for instance s3://bucket/x?endpoint_override=host:9000&scheme=http",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A file or a directory."""

    scheme: str
    """`file` for a local path."""
    host: str
    """Of a file system that has one; a store's bucket is part of the path."""
    path: str
    query: str = ""

    @classmethod
    def of(cls, address: str | Path) -> "Place":
        """Return the place of a path or an address. Raises Refused(INVALID_CONFIG) for one that
        is none."""
        text = str(address)
        if "://" not in text:
            return cls(LOCAL, "", str(Path(text).absolute()))
        parts = urlsplit(text)
        if "@" in parts.netloc:
            raise Refused(
                Code.INVALID_CONFIG,
                f"an address of {parts.scheme}:// holds credentials",
                hint="give them by the environment: addresses are printed and remembered",
            )
        if "#" in text:
            raise Refused(
                Code.INVALID_CONFIG,
                f"{text}: an address has no part behind #",
                hint="name the directory otherwise",
            )
        scheme = SAME.get(parts.scheme, parts.scheme)
        if scheme == LOCAL:
            _check_local(text)
            return cls(LOCAL, "", str(Path(unquote(parts.path))))  # RFC 8089
        if scheme in HDFS:
            return cls(scheme, parts.netloc, parts.path.rstrip("/"), parts.query)
        return cls(scheme, "", (parts.netloc + parts.path).rstrip("/"), parts.query)

    def __str__(self) -> str:
        """Return the path of a local place, the address of another; `of` reads both."""
        if self.is_local:
            return self.path
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.host}{self.path}{query}"

    def __truediv__(self, name: str) -> "Place":
        """Return a place in this directory."""
        return replace(self, path=f"{self.path}/{name}")

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> "Place":
        """The directory it lies in."""
        return replace(self, path=self.path.rpartition("/")[0])

    @property
    def is_local(self) -> bool:
        """Whether it lies on a disk of this machine, or is mounted as if it did."""
        return self.scheme == LOCAL

    @property
    def is_renaming(self) -> bool:
        """Whether a file that grows there is seen, and is renamed when it is whole."""
        return self.is_local or self.scheme in HDFS

    @property
    def files(self) -> Any:
        """The file system it lies in. Raises OSError where that cannot be reached."""
        bucket = self.path.partition("/")[0]
        return _files(self.scheme, host=self.host, bucket=bucket, query=self.query)

    def is_file(self) -> bool:
        """Whether a file is there."""
        found: bool = self.files.get_file_info(self.path).type == pafs.FileType.File
        return found

    def listed(self, *, recursive: bool = False) -> list["Listed"]:
        """Return what lies below, in the order of names; nothing where nothing is."""
        selector = pafs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
        found = [
            Listed(
                replace(self, path=info.path),
                info.type == pafs.FileType.File,
                int(info.mtime.timestamp() * 1000) if info.mtime else 0,
            )
            for info in self.files.get_file_info(selector)
        ]
        return sorted(found, key=lambda one: one.place.path)

    @contextmanager
    def created(self) -> Iterator[Any]:
        """Yield what is written to; the file is there when that ends well, and else is not."""
        target = self
        if self.is_renaming:
            target = self.parent / f".{self.name}.{uuid.uuid4().hex}"
        if self.is_local:
            self.parent.create()
        stream = self.files.open_output_stream(target.path)
        try:
            yield stream
        except BaseException:
            with suppress(OSError):
                stream.abort() if hasattr(stream, "abort") else stream.close()
                target.remove()
            raise
        stream.close()
        if self.is_local:
            _sync(target.path)
        elif target is not self:
            self.remove()  # HDFS does not rename over a file
        if target is not self:
            target.move(self)

    def create(self) -> None:
        """Create a local directory, and those above it; one that is there stays."""
        self.files.create_dir(self.path, recursive=True)

    def move(self, target: "Place") -> None:
        """Give a file or directory another name, durably, where that can be done at once."""
        self.files.move(self.path, target.path)
        if self.is_local:
            _sync(target.parent.path)

    def remove(self) -> None:
        """Remove a file, or a directory and what is in it; what is not there is no error."""
        with suppress(FileNotFoundError):
            kind = self.files.get_file_info(self.path).type
            if kind == pafs.FileType.Directory:
                self.files.delete_dir(self.path)
            elif kind == pafs.FileType.File:
                self.files.delete_file(self.path)


@dataclass(frozen=True, slots=True)
class Listed:
    """What lies in a directory."""

    place: Place
    is_file: bool
    changed_at_ms: int
    """0 where the file system does not say."""


def _check_local(text: str) -> None:
    """Refuse an address of a local disk that says more than a path: it would be another place."""
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path or "?" in text:
        raise Refused(
            Code.INVALID_CONFIG,
            f"{text} is no address of a local disk",
            hint="it is file:///data/x, with three slashes; %23 is a # in it, and %3F a ?",
        )


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@cache
def _files(scheme: str, *, host: str, bucket: str, query: str) -> Any:
    if scheme == LOCAL:
        return pafs.LocalFileSystem()
    try:
        return _arrows(scheme, host=host or bucket, query=query)
    except UNUSABLE as error:
        raise Refused(
            Code.INVALID_CONFIG,
            f"{scheme}://{host or bucket}/ cannot be opened: {str(error).splitlines()[0]}",
            hint=HINTS.get(scheme, f"known are file, s3, s3a and {', '.join(sorted(HDFS))}"),
        ) from error


def _arrows(scheme: str, *, host: str, query: str) -> Any:
    files, _ = pafs.FileSystem.from_uri(f"{scheme}://{host}/{f'?{query}' if query else ''}")
    return files
