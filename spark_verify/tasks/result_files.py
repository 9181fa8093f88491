"""The tables of a result: files of a run, each there as a whole or not at all."""

import pyarrow as pa
import pyarrow.parquet as pq

from spark_verify.file_systems import Place


def write(table: pa.Table, directory: Place, name: str) -> None:
    """Write rows as the file `name` of the table in `directory`.

    A task that is done twice, because a worker died or was slow, leaves the same file once.
    """
    with (directory / f"part-{name}.parquet").created() as stream:
        pq.write_table(table, stream, compression="zstd", write_page_checksum=True)


def sweep(directory: Place) -> None:
    """Remove what tasks left in a result that died while they wrote."""
    for left in directory.listed(recursive=True):
        if left.is_file and left.place.name.startswith(".part-"):
            left.place.remove()


def ordered(table: pa.Table, *columns: str) -> pa.Table:
    """Return the rows in the order of some columns."""
    return table.sort_by([(column, "ascending") for column in columns])
