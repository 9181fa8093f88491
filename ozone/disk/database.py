"""Reads the RocksDB of a datanode while the datanode runs, without writing to its directory.

Opening a RocksDB writes to its directory, even if the database is opened read-only. Therefore, this
module opens a temporary directory with symbolic links to the files. It removes the temporary
directory after the database is open, because an open database keeps its files open. If a compaction
removes a file between listing and opening, the module lists the directory again.

A view is a snapshot of the database. A caller requests a view that is not older than a given time.
If neither the log nor the manifest has grown, the last view is reused.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from suture.errors import Code, UnavailableError, missing_extra

if TYPE_CHECKING:
    from rocksdict import Rdict

ATTEMPTS_MAX: Final = 8  # attempts to list and open; a compaction in between is rare
OPENING_THREADS: Final = 4
UNCHANGED_S: Final = 30.0  # time until an unchanged, failing database is opened again
CHANGED_S: Final = 5.0  # the same time if the database has changed since the failure
ITEMS_PER_BATCH: Final = 4_096  # enough for fast numpy operations, in little memory
BATCH_BYTES: Final = 4 * 1024**2  # far more than a batch of small blocks; one row may exceed it
SUFFIXES: Final = (".log", ".sst", ".blob")
GROWING: Final = (".log",)  # every write appends to it; every flush appends to the manifest
MANIFEST: Final = "MANIFEST-"
CURRENT: Final = "CURRENT"
BLOCKS: Final = "block_data"
LAST_CHUNKS: Final = "last_chunk_info"
NUMBERS: Final = "metadata"
DELETES: Final = "delete_txns"
READ: Final = (BLOCKS, LAST_CHUNKS, NUMBERS, DELETES)

Signature = tuple[tuple[str, int, int, int], ...]


def library() -> Any:
    """Return the module rocksdict. Raise RefusedError if it is not installed."""
    try:
        import rocksdict
    except ModuleNotFoundError as error:
        raise missing_extra(error, "reading Ozone's volumes") from error
    return rocksdict


@contextmanager
def _reading(path: Path, scratch: str | None = None) -> Iterator[None]:
    """Convert errors of the RocksDB library, which are plain `Exception`s, to UnavailableError."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        why = str(error) if scratch is None else str(error).replace(scratch, str(path))
        raise UnavailableError(Code.UNABLE_TO_READ_METADATA_DB, f"{path}: {why}") from error


class DatabaseView:
    """A snapshot of a database, taken at `opened_at_s` (monotonic clock)."""

    def __init__(self, path: Path, database: "Rdict", names: list[str], opened_at_s: float) -> None:
        self._path = path
        self._families = {name: database.get_column_family(name) for name in READ if name in names}
        self.opened_at_s = opened_at_s

    def has(self, family: str) -> bool:
        """Return whether the database has this column family."""
        return family in self._families

    def value(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, or None if there is none.

        Raise UnavailableError if it cannot be read.
        """
        if family not in self._families:
            return None
        with _reading(self._path):
            found: bytes | None = self._families[family].get(key)
        return found

    def items(self, family: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) for each key with this prefix, in the order of the bytes of the keys.

        The prefix is removed from the yielded keys.
        """
        for keys, values in self.batches(family, prefix):
            yield from zip(keys, values, strict=True)

    def batches(self, family: str, prefix: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield the keys and values of `items` in batches, as (list of keys, list of values)."""
        if family not in self._families:
            return
        with _reading(self._path):
            cursor = self._families[family].iter()
            cursor.seek(prefix)
        start, is_more = len(prefix), True
        while is_more:
            keys: list[bytes] = []
            values: list[bytes] = []
            left_bytes = BATCH_BYTES
            with _reading(self._path):
                while len(keys) < ITEMS_PER_BATCH and left_bytes > 0:
                    if not cursor.valid():
                        cursor.status()  # raises if the iteration ended because of an error
                        is_more = False
                        break
                    key: bytes = cursor.key()
                    if not key.startswith(prefix):
                        is_more = False
                        break
                    value: bytes = cursor.value()
                    keys.append(key[start:])
                    values.append(value)
                    left_bytes -= len(key) + len(value)
                    cursor.next()
            if keys:
                yield keys, values

    def first_key(self, family: str, start: bytes) -> bytes | None:
        """Return the first key at or after `start`, or None if there is none.

        Raise UnavailableError if the database cannot be read.
        """
        if family not in self._families:
            return None
        with _reading(self._path):
            cursor = self._families[family].iter()
            cursor.seek(start)
            if not cursor.valid():
                cursor.status()
                return None
            key: bytes = cursor.key()
        return key

    def key_lengths(self, family: str, prefix: bytes) -> set[int]:
        """Return the lengths of the numeric keys with this prefix, in digits after the prefix.

        If the database cannot be read to the end, the set may be incomplete, and `batches` raises
        the error.
        """
        if family not in self._families:
            return set()
        with _reading(self._path):
            keys = cast(Iterator[bytes], self._families[family].keys(from_key=prefix))
            start = len(prefix)
            ours = takewhile(methodcaller("startswith", prefix), keys)
            return {len(key) - start for key in ours if key[start:].isdigit()}


@dataclass(frozen=True, slots=True)
class _Failure:
    """A failed attempt to open a database: the error, and the signature and time of the attempt."""

    error: UnavailableError
    signature: Signature
    at_s: float

    def is_of(self, seen: Signature) -> bool:
        """Return whether the attempt was so recent that another one would probably fail, too.

        `seen` is the current signature of the database. If the database has changed, the next
        attempt is made sooner.
        """
        age_s = time.monotonic() - self.at_s
        return age_s < (UNCHANGED_S if self.signature == seen else CHANGED_S)


class ContainerDatabase:
    """A RocksDB directory of a datanode. Its views remain usable after `close`.

    Only one thread may use the object.
    """

    def __init__(self, path: Path, scratch: Path) -> None:
        """Prepare to read a database. It is opened by the first call of `view`.

        `scratch` is a directory of Suture in which temporary directories are created.
        """
        self.path = self._path = path
        self._scratch = scratch
        self._view: DatabaseView | None = None
        self._signature: Signature = ()
        self._failure: _Failure | None = None

    def view(self, since_s: float) -> DatabaseView:
        """Return a view that is not older than `since_s` (monotonic clock).

        Raise RefusedError or UnavailableError if the database cannot be opened. A recent failure is
        raised again without another attempt.
        """
        if self._view is not None:
            if self._view.opened_at_s >= since_s:
                return self._view
            asked_at_s = time.monotonic()
            if self._signature and self._signature == signature(self._path):
                self._view.opened_at_s = asked_at_s
                return self._view
        before = signature(self._path)
        failure = self._failure
        if failure is not None and failure.is_of(before):
            raise UnavailableError(failure.error.code, str(failure.error), hint=failure.error.hint)
        self._view = self._failure = None
        try:
            self._view = self._open()
        except UnavailableError as error:
            self._failure = _Failure(error, before, time.monotonic())
            raise
        # If the database grew while it was opened, the next call opens it again.
        self._signature = before if before == signature(self._path) else ()
        return self._view

    def _open(self) -> DatabaseView:
        failures = []
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._open_once()
            except UnavailableError as error:
                failures.append(error)
                if len(failures) > 1 and str(failures[-2]) == str(error):
                    break  # no file has changed, so a retry will not help
        raise failures[-1]

    def _open_once(self) -> DatabaseView:
        rocks = library()
        opened_at_s = time.monotonic()
        if not self._path.is_dir():
            raise UnavailableError(
                Code.UNABLE_TO_READ_METADATA_DB,
                f"{self._path} does not exist",
                hint="give --db-dir if hdds.datanode.container.db.dir names another directory",
            )
        with tempfile.TemporaryDirectory(dir=self._scratch, prefix="view-") as scratch:
            for name in _names(self._path):
                (Path(scratch) / name).symlink_to(self._path.absolute() / name)
            with _reading(self._path, scratch):
                names = rocks.Rdict.list_cf(scratch)
                _check_names(self._path, names)
                families = {name: _options(rocks) for name in READ if name in names}
                database = rocks.Rdict(
                    scratch,
                    _options(rocks),
                    column_families=families,
                    access_type=rocks.AccessType.read_only(False),
                )
                return DatabaseView(self._path, database, names, opened_at_s)


def _check_names(path: Path, names: list[str]) -> None:
    """Raise UnavailableError if the database has no table of blocks.

    If the manifest of the database is truncated, RocksDB opens the database in an earlier, empty
    state.
    """
    if BLOCKS not in names:
        raise UnavailableError(
            Code.UNABLE_TO_READ_METADATA_DB,
            f"{path}: Corruption: no column family {BLOCKS}, which every datanode's has",
        )


def _options(rocks: Any) -> Any:
    options = rocks.Options(raw_mode=True)
    options.create_if_missing(False)
    options.set_max_open_files(-1)  # open all files at once, so that removed ones stay readable
    options.set_max_file_opening_threads(OPENING_THREADS)
    options.set_skip_stats_update_on_db_open(True)
    # A log that ends within an entry is being written. A log with an error before its end is
    # damaged; skipping the rest of it would make rows seem lost.
    options.set_wal_recovery_mode(rocks.DBRecoveryMode.tolerate_corrupted_tail_records())
    return options


def _names(path: Path) -> list[str]:
    names = (file.name for file in path.iterdir())
    return [
        name
        for name in names
        if name == CURRENT or name.startswith(MANIFEST) or name.endswith(SUFFIXES)
    ]


def signature(path: Path) -> Signature:
    """Return a value that changes with every write to the database, or () if it cannot be read."""
    facts = []
    try:
        for name in sorted(_names(path)):
            if name == CURRENT or name.startswith(MANIFEST) or name.endswith(GROWING):
                status = (path / name).stat()
                facts.append((name, status.st_size, status.st_mtime_ns, status.st_ino))
            else:
                facts.append((name, 0, 0, 0))
    except OSError:
        return ()
    return tuple(facts)


def clear_scratch(scratch: Path) -> None:
    """Recreate the directory for temporary directories.

    It may have symbolic links that a killed process has left.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
