"""Functions on the files of a state: copy them, verify each row, and prepare a copy for a restore.

Only backups and restores call these functions; a running SCM does not. A copy is one read
transaction of LMDB, so it contains the state at one instant. The copy is made in a separate
process, so a disk that fails during the copy does not affect the SCM.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import lmdb

from scm.state import records, state_metadata
from scm.state.database import StateTables
from scm.state.entities import UNFINISHED
from scm.state.history.history_tables import HistoryTable
from scm.state.page_check import check_pages
from scm.state.state_environment import DATA, DATABASES_MAX, snapshot_of
from scm.state.state_metadata import RestoreRecord, counters_anew
from scm.state.table import Table, rows_on_disk
from scm.state.tables.container_table import ContainerTable
from suture.errors import Code, RefusedError, UnavailableError

ROOM_BYTES: Final = 64 * 1024**2  # more than a reset writes
ROWS_PER_LOOK: Final = 10_000


@dataclass(frozen=True, slots=True)
class StateImage:
    """The ids and counts of a state in which every row could be read and decoded."""

    cluster_id: str
    format_version: int
    counters: dict[str, int]
    counts: dict[str, int]  # number of rows by table


def check_state(source: Path) -> None:
    """Raise RefusedError if the directory `source` contains no state."""
    if not (source / DATA).is_file():
        raise RefusedError(
            Code.INVALID_CONFIG,
            f"cannot back up {source.parent}: it has no state of an SCM",
            hint="name the --data directory of suture-scm",
        )


def copy_state(source: Path, target: Path) -> None:
    """Copy the state in the directory `source` at one instant, without its free pages, to `target`.

    Raise RefusedError if there is no state or if a page is damaged. Raise UnavailableError if a
    file cannot be read or written.
    """
    check_state(source)
    try:
        with snapshot_of(source) as (environment, transaction):
            check_pages(source)
            environment.copy(str(target), compact=True, txn=transaction)
    except (lmdb.Error, OSError) as error:
        raise UnavailableError(
            Code.IO_EXCEPTION, f"cannot copy the state in {source}: {error}"
        ) from error
    sync_file(target / DATA)


def read_all_rows(
    directory: Path, looked_at: Callable[[int], object] = lambda _count: None
) -> StateImage:
    """Read and decode every row of a state. No other process may use the state.

    `looked_at` is called with numbers of rows that were read since its last call. Raise
    RefusedError(INCONSISTENT_VOLUME) if a row cannot be decoded; the error names the row.
    """
    try:
        with (
            _opened(directory, readonly=True, lock=False) as environment,
            environment.begin() as transaction,
        ):
            meta = environment.open_db(state_metadata.DATABASE, txn=transaction, create=False)
            found = state_metadata.read(partial(transaction.get, db=meta))
            counts = {}
            for table in StateTables().each_table:
                database = environment.open_db(table.name.encode(), txn=transaction, create=False)
                counts[table.name] = _look_at(transaction, database, table, looked_at)
    except (records.DamagedRow, lmdb.Error) as error:
        raise RefusedError(Code.INCONSISTENT_VOLUME, f"state in {directory}: {error}") from error
    return StateImage(found.cluster_id, found.format_version, found.counters, counts)


def begin_anew(directory: Path, *, taken_at_ms: int, now_ms: int) -> RestoreRecord:
    """Prepare a copy of a state for use after a restore, in one transaction.

    The next ids become higher than all ids that the SCM can have assigned since the copy was made.
    The copy is marked as restored, so that the SCM requires a recovery. Raise OSError if the copy
    cannot be written.
    """
    size_bytes = (directory / DATA).stat().st_size + ROOM_BYTES
    containers = ContainerTable()
    with (
        _disk_errors(directory),
        # Open without a lock: no other process has the copy open yet, and on a full disk, a mapped
        # lock file would end this process with SIGBUS.
        _opened(
            directory, map_size=size_bytes, metasync=True, sync=True, lock=False
        ) as environment,
        environment.begin(write=True) as transaction,
    ):
        meta = environment.open_db(state_metadata.DATABASE, txn=transaction, create=False)
        rows = environment.open_db(containers.name.encode(), txn=transaction, create=False)
        containers.load(*rows_on_disk(partial(transaction.cursor, rows)))
        counters = state_metadata.read(partial(transaction.get, db=meta)).counters
        unfinished = {c.container_id for c in containers.not_closed() if c.state in UNFINISHED}
        first_new_id = counters["next_container_id"]
        row = transaction.get(state_metadata.RESTORED, db=meta)
        if row is not None:  # the backup was taken before an earlier restore was recovered
            earlier = state_metadata.RESTORE_RECORD.value(bytes(row))
            unfinished.update(earlier.unfinished)
            first_new_id = min(first_new_id, earlier.first_new_container_id)
        found = RestoreRecord(
            taken_at_ms=taken_at_ms,
            first_new_container_id=first_new_id,
            unfinished=tuple(sorted(unfinished)),
        )
        for name, number in counters_anew(counters, now_ms).items():
            transaction.put(name.encode(), records.pack([number]), db=meta)
        transaction.put(state_metadata.RESTORED, state_metadata.RESTORE_RECORD.row(found), db=meta)
    sync_file(directory / DATA)
    return found


def sync_file(path: Path) -> None:
    """Sync a file or directory to the disk, and drop it from the page cache.

    The next reader therefore reads it from the disk.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _look_at(
    transaction: lmdb.Transaction,
    database: Any,
    table: Table[Any, Any],
    looked_at: Callable[[int], object],
) -> int:
    count = 0
    for key, row in transaction.cursor(db=database):
        try:
            value = table.value(bytes(row))
            is_in_place = table.key_bytes(table.key_of(value)) == bytes(key)
        except (ValueError, TypeError) as error:
            if isinstance(table, HistoryTable):
                continue  # a start works without this row
            raise table.damaged(bytes(key), error) from error
        if not is_in_place:
            raise table.damaged(bytes(key), ValueError("the row belongs to another key"))
        count += 1
        if count % ROWS_PER_LOOK == 0:
            looked_at(ROWS_PER_LOOK)
    looked_at(count % ROWS_PER_LOOK)
    return count


@contextmanager
def _disk_errors(directory: Path) -> Iterator[None]:
    """Convert LMDB errors that the body raises to OSErrors that name the directory."""
    try:
        yield
    except lmdb.Error as error:
        raise OSError(f"state in {directory}: {error}") from error


@contextmanager
def _opened(directory: Path, **options: Any) -> Iterator[lmdb.Environment]:
    environment = lmdb.open(str(directory), create=False, max_dbs=DATABASES_MAX, **options)
    try:
        yield environment
    finally:
        environment.close()
