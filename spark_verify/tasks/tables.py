"""The tables of a result: files of a run, each there as a whole or not at all."""

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write(table: pa.Table, directory: Path, number: int = 0) -> None:
    """Write rows as file `number` of the table in `directory`.

    A task that is done twice, because a worker died or was slow, leaves the same file once.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"part-{number:05d}.parquet"
    growing = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    pq.write_table(table, growing, compression="zstd")
    growing.replace(path)


def sweep(directory: Path) -> None:
    """Remove what tasks left in a result that died while they wrote."""
    for left in directory.glob("*/.part-*"):
        left.unlink()


def ordered(table: pa.Table, *columns: str) -> pa.Table:
    """Return the rows in the order of some columns."""
    return table.sort_by([(column, "ascending") for column in columns])
