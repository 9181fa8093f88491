"""Plain Spark jobs as floors for the verification: `floors NAME SNAPSHOT OUT`.

aggregate  replicas by container: their number, the least and the greatest root, a row for each
identity   all rows of all containers, one case a container, through an Arrow function that
           changes nothing
"""

import sys
from collections.abc import Iterator

import pyarrow as pa
import pyspark.sql.functions as f

from spark_verify.frames.result_frames import cases
from spark_verify.session import open_session
from spark_verify.snapshot.manifest import read_manifest
from spark_verify.snapshot.tables import open_snapshot
from spark_verify.storage import LocalStorage


def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the input unchanged."""
    yield from batches


def main(name: str, directory: str, out: str) -> None:
    """Run the floor `name` on the snapshot in `directory`, and write its rows to `out`."""
    manifest = read_manifest(LocalStorage(directory))
    spark = open_session(row_count=sum(manifest.rows.values()))
    snapshot = open_snapshot(spark, directory)
    if name == "aggregate":
        root = f.min("root").alias("least"), f.max("root").alias("greatest")
        rows = snapshot["replicas"].groupBy("container_id").agg(f.count(f.lit(1)).alias("n"), *root)
    else:
        whole = cases(snapshot, snapshot["containers"].select("container_id"))
        rows = whole.mapInArrow(same, whole.schema)
    rows.write.parquet(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
