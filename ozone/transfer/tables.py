"""The rows of an archive: Ozone's tables in the files that RocksDB exports (`db/*.data`).

Each table is one sorted table file, or an empty file if it has no rows. The files are ingested into
an empty database. The rows are then read from this database like those of a volume
(`ozone.disk.rows`).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

from merkle.damaged_data import DamagedData
from merkle.replica import ContainerId
from ozone.disk.database import BLOCKS, DELETES, LAST_CHUNKS, NUMBERS, READ, DatabaseView, library
from ozone.disk.rows import ContainerRows
from ozone.transfer.entries import TABLE_SUFFIX, TABLES, ArchiveEntry, malformed
from ozone.transfer.scratch import Scratch, scratch_errors
from ozone.transfer.sorted_table import check_blocks
from suture.errors import Code, UnavailableError

SCHEMA: Final = 3  # rows of other schemas are not exported
RETIRED: Final = "deleted_blocks"  # Ozone 1.4 still sends it, without rows of schema V3
SEQUENCE: Final = "#BCSID"
DISK_ERROR: Final = "IO error"  # prefix of RocksDB's messages about a failed or full disk
FORMAT: Final = 5  # format of sorted tables that RocksDB 7.7 of Ozone 2.2 can read
BUFFER_BYTES: Final = 64 * 1024  # small write buffer, because nothing is written
TABLE_BYTES_MAX: Final = {  # limit of each file, and of its rows, which may be compressed
    BLOCKS: 512 * 1024**2,  # several times the rows of a container with the smallest blocks
    LAST_CHUNKS: 16 * 1024**2,  # rows of 100,000 files that were never closed
    NUMBERS: 1024**2,
    DELETES: 8 * 1024**2,  # transactions for 800,000 blocks
}
ROW_BYTES_MAX: Final = 8 * 1024**2  # a row of 1 GiB of data in windows of 1 KiB
BLOCK_BYTES_MAX: Final = 2 * ROW_BYTES_MAX  # large enough to report a row above ROW_BYTES_MAX
STATED: Final = "rocksdb.aggregated-table-properties"
SIZES: Final = re.compile(r"raw (?:key|value) size=(\d+);")


def keep_table(entry: ArchiveEntry, scratch: Scratch) -> None:
    """Store the file of one table.

    Raise RefusedError if the table is unknown, too large, or repeated. Ignore an empty table
    RETIRED, which older releases of Ozone still send.
    """
    name = entry.name.removeprefix(f"{TABLES}/").removesuffix(TABLE_SUFFIX)
    if name == RETIRED:
        if entry.size_bytes:
            raise malformed(f"its table {RETIRED} has {entry.size_bytes} bytes, known are none")
        return
    if entry.name != f"{TABLES}/{name}{TABLE_SUFFIX}" or name not in READ:
        raise malformed(f"{entry.name[:100]!r} is no table of schema V{SCHEMA}")
    if entry.size_bytes > TABLE_BYTES_MAX[name]:
        raise malformed(f"{entry.name} has {entry.size_bytes} bytes")
    path = scratch.reserve(entry.size_bytes) / f"{name}{TABLE_SUFFIX}"
    if path.exists():
        raise malformed(f"{entry.name} comes twice")
    with scratch_errors(), path.open("xb") as file:
        for piece in entry.pieces:
            file.write(piece)


@contextmanager
def rows_of(scratch: Path, container_id: ContainerId) -> Iterator[ContainerRows]:
    """Open the stored tables for a `with` block, which receives their rows.

    Raise RefusedError if a table is damaged, or if there is no table of blocks.
    """
    rocks = library()
    files = {name: scratch / f"{name}{TABLE_SUFFIX}" for name in READ}
    if not files[READ[0]].exists():
        raise malformed(f"there is no {TABLES}/{READ[0]}{TABLE_SUFFIX}")
    names = [name for name, path in files.items() if path.exists() and path.stat().st_size]
    for name in names:
        _check_blocks(name, files[name])
    options = _options(rocks)
    options.create_missing_column_families(True)
    with _refused():  # together, because each later one rewrites the manifest
        families = {name: _options(rocks) for name in names}
        database = rocks.Rdict(str(scratch / "ingested"), options, column_families=families)
    try:
        for name in names:
            with _refused():
                family = database.get_column_family(name)
                family.ingest_external_file([str(files[name])])
                stated = family.property_value(STATED)
            _check_size(name, sum(map(int, SIZES.findall(stated or ""))))
        yield ContainerRows(_Tables(scratch, database, names, 0.0), container_id, SCHEMA)
    finally:
        database.close()


def _check_blocks(name: str, path: Path) -> None:
    """Raise RefusedError if a block in a table states a size that no valid block can have."""
    try:
        with scratch_errors():
            check_blocks(path, BLOCK_BYTES_MAX)
    except DamagedData as damage:
        what = f"its tables cannot be read: {TABLES}/{name}{TABLE_SUFFIX}: {damage}"
        raise malformed(what) from damage


class _Tables(DatabaseView):
    """The tables of an archive, with a limit on their unpacked size."""

    def batches(self, family: str, prefix: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield (list of keys, list of values) in batches.

        Raise RefusedError if the table exceeds TABLE_BYTES_MAX, or if a row exceeds ROW_BYTES_MAX.
        """
        size_bytes = 0
        for keys, values in super().batches(family, prefix):
            size_bytes += sum(map(len, keys)) + sum(map(len, values))
            _check_size(family, size_bytes)
            largest_bytes = max(map(len, values))
            if largest_bytes > ROW_BYTES_MAX:
                name = f"{TABLES}/{family}{TABLE_SUFFIX}"
                raise malformed(f"{name} has a row of {largest_bytes} bytes")
            yield keys, values


def _check_size(name: str, size_bytes: int) -> None:
    if size_bytes > TABLE_BYTES_MAX[name]:
        raise malformed(
            f"{TABLES}/{name}{TABLE_SUFFIX} unpacks to {size_bytes} bytes, at most "
            f"{TABLE_BYTES_MAX[name]}"
        )


def write_table(scratch: Path, name: str, rows: Iterator[tuple[bytes, bytes]]) -> None:
    """Write the file of one table in the format that Ozone ingests. `rows` must be sorted by key.

    If there are no rows, the file is empty. Raise RefusedError if the library is not installed, and
    UnavailableError if the file cannot be written.
    """
    path = scratch / f"{name}{TABLE_SUFFIX}"
    first = next(rows, None)
    if first is None:
        path.touch()
        return
    rocks = library()
    blocks = rocks.BlockBasedOptions()
    blocks.set_format_version(FORMAT)
    options = _options(rocks)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(rocks.DBCompressionType.none())
    writer = rocks.SstFileWriter(options)
    with _refused():
        writer.open(str(path))
        for key, value in chain([first], rows):
            writer[key] = value
        writer.finish()


def _options(rocks: Any) -> Any:
    """Return RocksDB options for small databases that are read once."""
    options = rocks.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(BUFFER_BYTES)
    options.set_table_cache_num_shard_bits(0)
    options.set_skip_stats_update_on_db_open(True)
    return options


@contextmanager
def _refused() -> Iterator[None]:
    """Convert errors of the RocksDB library, which are plain `Exception`s, to Suture's errors."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        if str(error).startswith(DISK_ERROR):
            what = f"tables of an archive: {error}"
            raise UnavailableError(
                Code.DISK_OUT_OF_SPACE, what, hint="free space in TMPDIR"
            ) from error
        raise malformed(f"its tables cannot be read: {error}") from error
