"""fsspec file system of a cluster: `suture://HOST:PORT/KEY` in pandas, pyarrow and dask.

A directory is the beginning of some keys up to a "/". A directory without keys does not exist, so
`mkdir` does nothing. fsspec finds the class through the entry point in pyproject.toml.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Unpack

from fsspec.callbacks import DEFAULT_CALLBACK, Callback
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from suture.client.async_client import ClientOptions
from suture.client.client import Client, KeyInfo, _info
from suture.client.key_listing import KEYS_PER_PAGE, OK, delete_keys
from suture.errors import KeyExists, KeyNotFound
from suture.wire.v1 import scm_pb2

MEMORY_BYTES_MAX: Final = 4 * 2**20  # of a file that is being written; the rest is on disk
LAST: Final = "\U0010ffff"  # the character that sorts after all others


@contextmanager
def _file_errors(path: str) -> Iterator[None]:
    """Raise FileNotFoundError instead of KeyNotFound, and FileExistsError instead of KeyExists."""
    try:
        yield
    except KeyNotFound as error:
        raise FileNotFoundError(path) from error
    except KeyExists as error:
        raise FileExistsError(path) from error


class SutureFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The keys of a cluster as files, with the methods of fsspec's AbstractFileSystem."""

    protocol = "suture"
    root_marker = ""

    def __init__(self, scm: str, **options: Unpack[ClientOptions]) -> None:
        """Take the arguments and options of `suture.Client`."""
        super().__init__(scm=scm, **options)
        self.scm = scm
        self.client = Client(scm, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return the key of an address, or the keys of a list of addresses."""
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        _, is_address, rest = str(path).partition("suture://")
        return (rest.partition("/")[2] if is_address else str(path)).strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        """Return the argument `scm` of the file system of an address."""
        return {"scm": path.removeprefix("suture://").partition("/")[0]}

    def unstrip_protocol(self, name: str) -> str:
        """Return the address of a key."""
        return f"suture://{self.scm}/{self._strip_protocol(name)}"

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return the files and directories in the directory `path`, by name. If there is no such
        directory, return the file `path`, or raise FileNotFoundError."""
        path = self._strip_protocol(path)
        found = list({(one["name"], one["type"]): one for one in self._children(path)}.values())
        if not found and path:
            found = [self.info(path)]
        return found if detail else [one["name"] for one in found]

    def _children(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the entries in a directory, one repeatedly if it has many keys."""
        prefix, after, is_last = path and f"{path}/", "", False
        while not is_last:
            request = scm_pb2.ListKeysRequest(prefix=prefix, start_after=after, count=KEYS_PER_PAGE)
            page = self.client._cluster.scm.list_keys(request)
            for key in page.keys:
                name, is_directory, _ = key.key[len(prefix) :].partition("/")
                yield _directory(prefix + name) if is_directory else _file(_info(key))
            after, is_last = page.next_start_after, not page.next_start_after
            name, is_directory, _ = after[len(prefix) :].partition("/")
            if is_directory:  # continue after the keys of this directory
                after = f"{prefix}{name}/{LAST}"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return `name`, `size` in bytes and `type`; for a file also `created`. Raise
        FileNotFoundError if there is neither a file nor a directory `path`."""
        path = self._strip_protocol(path)
        if path:
            with suppress(KeyNotFound):
                return _file(self.client.info(path))
            if next(self._children(path), None) is None:
                raise FileNotFoundError(path)
        return _directory(path)

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether there is a file or a directory `path`. Raise an error if the control plane
        does not answer; fsspec's own method returns False."""
        with suppress(FileNotFoundError):
            return bool(self.info(path))
        return False

    def rm_file(self, path: str) -> None:
        """Delete a file. Raise FileNotFoundError if there is none."""
        path = self._strip_protocol(path)
        with _file_errors(path):
            self.client.delete(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Delete files and, with `recursive`, the files of directories. Raise FileNotFoundError if
        there is no such file."""
        paths = self.expand_path(path, recursive=recursive, maxdepth=maxdepth)
        for first in range(0, len(paths), KEYS_PER_PAGE):
            names = paths[first : first + KEYS_PER_PAGE]
            for one in delete_keys(self.client._cluster.scm, names):
                if one.code != OK and not recursive:
                    raise FileNotFoundError(one.key)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        """Copy a file through this process."""
        if not self.isdir(path1):
            with self.open(path1) as source, self.open(path2, "wb") as target:
                shutil.copyfileobj(source, target, MEMORY_BYTES_MAX)

    def put_file(
        self,
        lpath: str,
        rpath: str,
        callback: Callback = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **_: Any,
    ) -> None:
        """Store a local file. Raise FileExistsError if the key exists and `mode` is "create"."""
        if not Path(lpath).is_dir():
            callback.set_size(Path(lpath).stat().st_size)
            with _file_errors(rpath):
                self.client.put(
                    self._strip_protocol(rpath),
                    Path(lpath),
                    replace=mode != "create",
                    progress=callback.relative_update,
                )

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "SutureFile":
        """Open a key. Data is stored when the file is closed, and replaces an existing key. With
        the mode "xb", raise FileExistsError if the key exists now or when the file is closed."""
        if mode not in {"rb", "wb", "xb"}:
            raise ValueError(f"cannot open {path} with mode {mode}: use rb, wb or xb")
        if mode == "xb" and self.isfile(path):
            raise FileExistsError(path)
        return SutureFile(self, path, mode, **options)


class SutureFile(AbstractBufferedFile):  # type: ignore[misc]
    """A key that is read in ranges, or a new key that is stored when the file is closed.

    All ranges are of the version of the key that existed when the file was opened. If the body of
    its `with` block raises an exception, nothing is stored.
    """

    def __init__(self, fs: SutureFileSystem, path: str, mode: str, **options: Any) -> None:
        """Look up a key that is to be read. Raise FileNotFoundError if there is none."""
        if mode == "rb":
            with _file_errors(path):
                self._found = fs.client._look_up(path)
            options["size"] = self._found.key.size
        super().__init__(fs, path, mode, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        return b"".join(self.fs.client._pieces(self._found, start, end))

    def _initiate_upload(self) -> None:
        self._spool = tempfile.SpooledTemporaryFile(MEMORY_BYTES_MAX)  # noqa: SIM115

    def _upload_chunk(self, final: bool = False) -> bool:
        """Keep what was written; when the file is closed, store it."""
        self._spool.write(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Store the data. Raise FileExistsError if the mode is "xb" and the key exists."""
        self._spool.seek(0)
        with self._spool, _file_errors(self.path):
            self.fs.client.put(self.path, self._spool, replace=self.mode == "wb")

    def discard(self) -> None:
        """Store nothing."""
        if self.offset is not None:
            self._spool.close()
        self.closed = True

    def __exit__(self, error: object, *_: object) -> None:
        if error and self.mode != "rb":
            self.discard()
        self.close()


def _file(key: KeyInfo) -> dict[str, Any]:
    return {"name": key.key, "size": key.size_bytes, "type": "file", "created": key.created_at}


def _directory(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}
