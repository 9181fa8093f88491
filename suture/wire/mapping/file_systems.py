"""Reads and writes files and directories of any file system, given by a path or an address.

    /var/lib/x   file:///var/lib/x   s3://bucket/x   s3a://bucket/x
    hdfs://name:8020/x

A path or address is passed to other processes as text and opened there. The credentials come from
the environment of each machine. An address that contains credentials is refused, because addresses
are printed. Other options are in the query of the address:
`s3://bucket/x?endpoint_override=host:9000&scheme=http`.

A file becomes visible only when it is complete. On a disk and in HDFS, growing files are visible,
so a file is written under a temporary name and renamed. In an object store, an object becomes
visible when its last byte is stored.
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

from suture.errors import Code, RefusedError

SAME: Final = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names of file systems, and the names that this module uses for them."""

LOCAL: Final = "file"

HDFS: Final = frozenset({"hdfs", "viewfs"})
"""File systems that require libhdfs, which is part of Hadoop and needs its jars."""

UNUSABLE: Final = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    OSError,  # libhdfs is missing
    ImportError,  # fsspec is missing
    ValueError,  # a port is not a number, or a token follows a name
    TypeError,  # Arrow does not know an option in the query
)
"""Errors that mean that the file system of an address cannot be used."""

HINTS: Final = {
    "hdfs": "it needs Hadoop's libhdfs and jars (HADOOP_HOME, CLASSPATH)",
    "viewfs": "it needs Hadoop's libhdfs and jars (HADOOP_HOME, CLASSPATH)",
    "s3": "for instance s3://bucket/x?endpoint_override=host:9000&scheme=http",
}


@dataclass(frozen=True, slots=True)
class FsPath:
    """The path of a file or directory on the local disk or in another file system."""

    scheme: str
    """Kind of the file system, such as `s3`; `file` for a local path."""
    host: str
    """Host of the file system, or "" if it has none. The bucket of an object store is a part of
    `path`."""
    path: str
    query: str = ""

    @classmethod
    def of(cls, address: str | Path) -> "FsPath":
        """Convert a path or an address. Raise RefusedError(INVALID_CONFIG) if it is invalid."""
        text = str(address)
        if "://" not in text:
            return cls(LOCAL, "", str(Path(text).absolute()))
        parts = urlsplit(text)
        if "@" in parts.netloc:
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"cannot use an address of {parts.scheme}:// with credentials",
                hint="set credentials in the environment: addresses are printed and stored",
            )
        if "#" in text:
            raise RefusedError(
                Code.INVALID_CONFIG,
                f"invalid address '{text}': a fragment after # is not supported",
                hint="rename the directory",
            )
        scheme = SAME.get(parts.scheme, parts.scheme)
        if scheme == LOCAL:
            _check_local(text)
            return cls(LOCAL, "", str(Path(unquote(parts.path))))  # RFC 8089
        if scheme in HDFS:
            return cls(scheme, parts.netloc, parts.path.rstrip("/"), parts.query)
        return cls(scheme, "", (parts.netloc + parts.path).rstrip("/"), parts.query)

    def __str__(self) -> str:
        """Return the path if the file is local, or else the address. `of` converts both back."""
        if self.is_local:
            return self.path
        query = f"?{self.query}" if self.query else ""
        return f"{self.scheme}://{self.host}{self.path}{query}"

    def __truediv__(self, name: str) -> "FsPath":
        """Return the path of the entry `name` of this directory."""
        return replace(self, path=f"{self.path}/{name}")

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> "FsPath":
        """Parent directory."""
        return replace(self, path=self.path.rpartition("/")[0])

    @property
    def is_local(self) -> bool:
        """True if the path is on a disk of this machine or on a mounted file system."""
        return self.scheme == LOCAL

    @property
    def is_renaming(self) -> bool:
        """True if growing files are visible in the file system, so that a complete file must be
        renamed."""
        return self.is_local or self.scheme in HDFS

    @property
    def files(self) -> Any:
        """The Arrow file system of this path. Raise OSError or RefusedError if it cannot be
        used."""
        bucket = self.path.partition("/")[0]
        return _files(self.scheme, host=self.host, bucket=bucket, query=self.query)

    def is_file(self) -> bool:
        """Return True if the path exists and is a file."""
        found: bool = self.files.get_file_info(self.path).type == pafs.FileType.File
        return found

    def listed(self, *, recursive: bool = False) -> list["FsEntry"]:
        """Return the entries of this directory, sorted by name. Return an empty list if the
        directory does not exist."""
        selector = pafs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
        found = [
            FsEntry(replace(self, path=info.path), info.type == pafs.FileType.File)
            for info in self.files.get_file_info(selector)
        ]
        return sorted(found, key=lambda one: one.place.path)

    @contextmanager
    def created(self) -> Iterator[Any]:
        """Yield a file to write. The file becomes visible at the end of the `with` block. If the
        block raises an exception, the file is removed."""
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
            self.remove()  # needed because HDFS cannot rename onto an existing file
        if target is not self:
            target.move(self)

    def create(self) -> None:
        """Create a local directory with its parents. Do nothing if it exists."""
        self.files.create_dir(self.path, recursive=True)

    def move(self, target: "FsPath") -> None:
        """Rename a file or directory durably. The file system must rename atomically."""
        self.files.move(self.path, target.path)
        if self.is_local:
            _sync(target.parent.path)

    def remove(self) -> None:
        """Remove a file, or a directory with its contents. Do nothing if it does not exist."""
        with suppress(FileNotFoundError):
            kind = self.files.get_file_info(self.path).type
            if kind == pafs.FileType.Directory:
                self.files.delete_dir(self.path)
            elif kind == pafs.FileType.File:
                self.files.delete_file(self.path)


@dataclass(frozen=True, slots=True)
class FsEntry:
    """An entry of a directory."""

    place: FsPath
    is_file: bool


def _check_local(text: str) -> None:
    """Raise RefusedError if a local address has a host, a query or no path, because another file
    would be opened."""
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost") or not parts.path or "?" in text:
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"invalid address '{text}': expected a local path as file:///data/x",
            hint="write three slashes, and %23 for #, %3F for ?",
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
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot open {scheme}://{host or bucket}/: {str(error).splitlines()[0]}",
            hint=HINTS.get(scheme, f"known are file, s3, s3a and {', '.join(sorted(HDFS))}"),
        ) from error


def _arrows(scheme: str, *, host: str, query: str) -> Any:
    files, _ = pafs.FileSystem.from_uri(f"{scheme}://{host}/{f'?{query}' if query else ''}")
    return files
