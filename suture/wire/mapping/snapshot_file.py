"""Writes a snapshot of the control plane's tables at one instant, as files for the Spark job.

    <snapshot>/manifest.json
               containers/part-00000.parquet
               replicas/part-…  nodes/part-…  pending_ops/part-…

The manifest is written last: a directory without a manifest is no snapshot. All files are written
to a hidden directory next to the target, synced, and renamed. Therefore, a reader sees either a
complete snapshot or none. An unsigned 64-bit checksum is stored as the signed number with the same
bits, because Spark has no unsigned type.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow
import pyarrow.parquet

from health.tables.snapshot_columns import SCHEMA_VERSION, TABLES, Row
from suture.errors import Code, RefusedError, UnavailableError

pa: Any = pyarrow  # compiled code without types
pq: Any = pyarrow.parquet

ROWS_PER_GROUP: Final = 100_000  # number of rows that exist as Python values at the same time
ROWS_PER_PART: Final = 2_000_000  # number of rows that one Spark task reads


SNAPSHOT_ID: Final = "snapshot_id"  # a column with the same value in all rows
KINDS: Final = {
    "string": pa.string(),
    "long": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
}

SCHEMAS: Final[dict[str, Any]] = {
    name: pa.schema([pa.field(c.name, KINDS[c.kind], nullable=c.is_nullable) for c in columns])
    for name, columns in TABLES.items()
}
"""Arrow schemas of the tables that the Spark job reads, by table."""


@contextmanager
def writing(target: Path, snapshot_id: str) -> Iterator["SnapshotFiles"]:
    """Yield a snapshot to write. If it is finished at the end of the `with` block, it is renamed to
    `target`; otherwise it is removed.

    Raise UnavailableError(DISK_OUT_OF_SPACE) if the snapshot cannot be written,
    UnavailableError(BUSY) if another process is writing it, and RefusedError if it already exists.
    """
    building = target.parent / f".{target.name}.building"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        claim = _claim(building)
        try:
            if target.exists():
                raise RefusedError(
                    Code.CONTAINER_EXISTS,
                    f"cannot write the snapshot {target}: it exists",
                    hint="name a new directory",
                )
            files = SnapshotFiles(building, snapshot_id)
            try:
                yield files
                files.close()
                if files.is_finished:
                    building.rename(target)
                    _sync(target.parent)
            finally:
                files.close()
                shutil.rmtree(building, ignore_errors=True)
        finally:
            os.close(claim)
    except OSError as error:
        raise UnavailableError(
            Code.DISK_OUT_OF_SPACE, f"cannot write the snapshot: {error}"
        ) from error


class SnapshotFiles:
    """The files of an unfinished snapshot. Rows of any table may be added at any time."""

    def __init__(self, building: Path, snapshot_id: str) -> None:
        self._building = building
        self._snapshot_id = snapshot_id
        self._tables = {
            name: _Table(building / name, schema, snapshot_id) for name, schema in SCHEMAS.items()
        }
        self.is_finished = False

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows of each table, by table."""
        return {name: table.count for name, table in self._tables.items()}

    def add(self, table: str, rows: Iterable[Row]) -> None:
        """Add rows to a table. Rows are kept in memory until they fill a row group of the file.

        Raise OSError if the rows cannot be written, pyarrow.ArrowInvalid if a value has the wrong
        type, KeyError if a value is missing, and ValueError if a value has no column.
        """
        self._tables[table].add(rows)

    def finish(
        self,
        *,
        as_of_ms: int,
        term: int,
        cluster_id: str,
        rules: Mapping[str, int],
        keys_at_risk: Mapping[str, object] | None = None,
    ) -> None:
        """Write the remaining rows and the manifest. `health.tables.snapshot_columns` describes
        `keys_at_risk`. Raise OSError or pyarrow.ArrowInvalid if this fails."""
        for table in self._tables.values():
            table.finish()
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "snapshot_id": self._snapshot_id,
            "as_of_ms": as_of_ms,
            "term": term,
            "cluster_id": cluster_id,
            "rules": dict(rules),
            "rows": self.counts,
        }
        if keys_at_risk is not None:
            manifest["keys_at_risk"] = keys_at_risk
        path = self._building / "manifest.json"
        path.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        _sync(path)
        _sync(self._building)
        self.is_finished = True

    def close(self) -> None:
        """Close the files. The snapshot is not finished by this method."""
        for table in self._tables.values():
            table.close()


class _Table:
    """The files of one table. Each file has complete row groups. An empty table has one file with
    the schema."""

    def __init__(self, directory: Path, schema: Any, snapshot_id: str) -> None:
        self._directory = directory
        self._schema = schema
        self._snapshot_id = snapshot_id
        self._kept: list[Row] = []
        self._part: Any = None
        self._path = directory
        self._part_count = 0
        self._in_part = 0
        self.count = 0
        directory.mkdir()

    def add(self, rows: Iterable[Row]) -> None:
        iterator = iter(rows)
        while more := list(islice(iterator, ROWS_PER_GROUP - len(self._kept))):
            self._kept += more
            if len(self._kept) == ROWS_PER_GROUP:
                self._write()

    def finish(self) -> None:
        if self._kept or not self._part_count:
            self._write()
        self._end_part()
        _sync(self._directory)

    def close(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None

    def _write(self) -> None:
        if self._part is None:
            self._path = self._directory / f"part-{self._part_count:05d}.parquet"
            self._part = pq.ParquetWriter(
                self._path, self._schema, compression="zstd", write_page_checksum=True
            )
            self._part_count += 1
            self._in_part = 0
        group, self._kept = self._kept, []
        if group:
            strange = set().union(*(row.keys() for row in group)).difference(self._schema.names)
            if strange:
                raise ValueError(f"{self._directory.name} has no {', '.join(sorted(strange))}")
            arrays = [self._array(field, group) for field in self._schema]
            self._part.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
            self.count += len(group)
            self._in_part += len(group)
        if self._in_part >= ROWS_PER_PART:
            self._end_part()

    def _array(self, field: Any, group: Sequence[Row]) -> Any:
        name: str = field.name
        if name == SNAPSHOT_ID:
            return pa.array([self._snapshot_id] * len(group), type=field.type)
        if field.nullable:
            return pa.array([row.get(name) for row in group], type=field.type)
        return pa.array([row[name] for row in group], type=field.type)

    def _end_part(self) -> None:
        if self._part is not None:
            self.close()
            _sync(self._path)


def _claim(building: Path) -> int:
    """Create the directory of the snapshot and lock it. Return its descriptor. Files of a killed
    process are removed first."""
    if building.exists():
        descriptor = os.open(building, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _lock(descriptor, building)
            shutil.rmtree(building)
        finally:
            os.close(descriptor)
    building.mkdir()
    descriptor = os.open(building, os.O_RDONLY | os.O_DIRECTORY)
    _lock(descriptor, building)
    return descriptor


def _lock(descriptor: int, building: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UnavailableError(
            Code.BUSY,
            f"cannot export the snapshot: another export writes {building}",
            hint="wait for its end",
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
