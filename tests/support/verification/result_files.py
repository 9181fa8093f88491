"""Files of a verification's result tables, as `suture-verify` lays them out."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_result_table(run: Path, name: str, rows: pa.Table) -> None:
    """Write a table beside the directory of a run, for an attempt with the name ""."""
    directory = run.parent / name / run.name / "attempt="
    directory.mkdir(parents=True)
    pq.write_table(rows, directory / "part.parquet")
