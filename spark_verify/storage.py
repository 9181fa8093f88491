"""Reads and writes small files in the directory of a snapshot or of results: manifests and reports.

    /var/lib/x   file:///var/lib/x   s3a://bucket/x   hdfs://name:8020/x   abfs://...

Python reads and writes local files. For all other addresses, the file system of Hadoop is used,
with the configuration and the credentials of the Spark session.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from spark_verify.errors import FAILURES, PathRefused, describe_error
from suture.wire.mapping.file_systems import FsPath

HADOOP_NAMES: Final = {"s3": "s3a", "s3n": "s3a"}
"""Schemes of addresses that have another name in Hadoop."""

AZURE: Final = ("abfs", "abfss", "wasb", "wasbs")
"""Schemes of addresses with a container before the host, as in abfs://container@account/path."""


def address_of(text: str | Path) -> str:
    """Return a path or an address in canonical form. A local path becomes absolute.

    Raise RefusedError if the address contains credentials, because addresses are printed and
    recorded. Raise PathRefused if the address has a query or a fragment.
    """
    text = str(text)
    parts = urlsplit(text)
    if parts.scheme not in AZURE or "://" not in text:
        place = FsPath.of(text)
        if place.is_local:
            return place.path
    if parts.query or parts.fragment:
        raise PathRefused(
            f"invalid address '{text}': a part after ? or # is not supported",
            hint="configure endpoints in Spark, for example spark.hadoop.fs.s3a.endpoint",
        )
    scheme = HADOOP_NAMES.get(parts.scheme, parts.scheme)
    return f"{scheme}://{parts.netloc}{parts.path}".rstrip("/")


def is_local(address: str) -> bool:
    """Return whether an address in canonical form is a local path."""
    return "://" not in address


def spark_path(address: str) -> str:
    """Return an address in the form that Spark needs.

    A local path gets the scheme `file`. Without a scheme, Spark would search the path in the
    default file system of the cluster.
    """
    return f"file://{address}" if is_local(address) else address


class LocalStorage:
    """Access to the small files in a local directory."""

    def __init__(self, address: str) -> None:
        self.address = address

    def read_text(self, name: str) -> str:
        """Return the text of a file. Raise FileNotFoundError if it does not exist."""
        return Path(self.address, name).read_text(encoding="utf-8")

    def read_tail(self, name: str, size_bytes: int) -> bytes:
        """Return the last `size_bytes` bytes of a file, or all bytes of a smaller file."""
        with Path(self.address, name).open("rb") as stream:
            stream.seek(max(stream.seek(0, os.SEEK_END) - size_bytes, 0))
            return stream.read()

    def write_text(self, name: str, text: str) -> None:
        """Create or replace a file. Readers see either the complete file or no file."""
        with FsPath.of(Path(self.address, name)).created() as stream:
            stream.write(text.encode("utf-8"))

    def listed(self, name: str = "") -> dict[str, int]:
        """Return the sorted names in a directory, each with the time of its last change.

        The times are in milliseconds since 1970. Return an empty dict if the directory does not
        exist.
        """
        found = {}
        with suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(Path(self.address, name)):
                with suppress(FileNotFoundError):  # another process has just deleted the file
                    found[entry.name] = int(entry.stat().st_mtime * 1000)
        return dict(sorted(found.items()))

    def delete(self, name: str) -> None:
        """Delete a file or a directory with its content, if it exists."""
        path = Path(self.address, name)
        with suppress(FileNotFoundError):  # another process has deleted the same file
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class HadoopStorage:
    """Access to the small files in a directory of a Hadoop file system, by the JVM of Spark."""

    def __init__(self, address: str, spark: SparkSession) -> None:
        self.address = address
        jvm: Any = getattr(spark, "_jvm", None)
        if jvm is None:
            raise PathRefused(
                f"cannot reach {address}: a Spark Connect client has no Hadoop file system",
                hint="submit the job to the cluster (spark-submit), or name a shared directory",
            )
        self._jvm = jvm
        with self._translated():
            configuration = spark._jsc.hadoopConfiguration()
            self._files = self._path("").getFileSystem(configuration)

    def read_text(self, name: str) -> str:
        """Return the text of a file. Raise FileNotFoundError if it does not exist."""
        return self.read_tail(name, sys.maxsize).decode("utf-8")

    def read_tail(self, name: str, size_bytes: int) -> bytes:
        """Return the last `size_bytes` bytes of a file, or all bytes of a smaller file."""
        with self._translated():
            length = self._files.getFileStatus(self._path(name)).getLen()
            stream = self._files.open(self._path(name))
            try:
                stream.seek(max(length - size_bytes, 0))
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def write_text(self, name: str, text: str) -> None:
        """Create or replace a file. Readers see either the complete file or no file."""
        with self._translated():
            stream = self._files.create(self._path(name), True)
            stream.write(bytearray(text.encode("utf-8")))
            stream.close()

    def listed(self, name: str = "") -> dict[str, int]:
        """Return the sorted names in a directory, each with the time of its last change.

        The times are in milliseconds since 1970. Return an empty dict if the directory does not
        exist.
        """
        with suppress(FileNotFoundError), self._translated():
            entries = self._files.listStatus(self._path(name))
            found = {e.getPath().getName(): e.getModificationTime() for e in entries}
            return dict(sorted(found.items()))
        return {}

    def delete(self, name: str) -> None:
        """Delete a file or a directory with its content, if it exists."""
        with self._translated():
            self._files.delete(self._path(name), True)

    def _path(self, name: str) -> Any:
        text = f"{self.address}/{name}" if name else self.address
        return self._jvm.org.apache.hadoop.fs.Path(text)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Convert an error of Java in the `with` block to an OSError with a message of one line."""
        try:
            yield
        except FAILURES as error:
            if isinstance(error, OSError | PathRefused):
                raise
            kind = FileNotFoundError if "FileNotFoundException" in str(error) else OSError
            raise kind(f"{self.address}: {describe_error(error)}") from error


Storage = LocalStorage | HadoopStorage


def storage_of(address: str, spark: SparkSession | None) -> Storage:
    """Return an object that accesses the small files in a directory.

    `spark` may be None if the directory is local.
    """
    if is_local(address):
        return LocalStorage(address)
    assert spark is not None
    return HadoopStorage(address, spark)
