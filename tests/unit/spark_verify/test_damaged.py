"""Files whose bytes changed, and such that nobody could have meant, are refused by name."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_verify.errors import FAILURES, SnapshotRefused, describe_error
from spark_verify.input_columns import TABLES
from spark_verify.pipeline import VerifyRequest, verify
from spark_verify.session import open_session
from spark_verify.snapshot.tables import check_files, read_below
from suture.errors import RefusedError
from suture.wire.mapping.plan_file import FinishedRun, read_plan
from suture.wire.mapping.snapshot_file import writing
from tests.support.verification.snapshots import container, gather

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

BYTES_OF_TAIL = 8
OPS = pa.table({name: list(range(9, 99)) for name in ("container_id", "command_id", "deadline_ms")})


def flipped(path: Path, count: int) -> list[bytes]:
    """Return what the file would be with one bit of its pages flipped, in so many places."""
    whole = path.read_bytes()
    footer = int.from_bytes(whole[-BYTES_OF_TAIL:-4], "little") + BYTES_OF_TAIL
    places = range(4, len(whole) - footer, max(1, (len(whole) - footer) // count))
    return [
        whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        for place in places
    ]


def of_control_plane(directory: Path) -> Path:
    """Write pending ops as a control plane does."""
    rows = [
        row | {"op": "DELETE", "datanode_id": "dn", "replica_index": 0} for row in OPS.to_pylist()
    ]
    with writing(directory / "s", "s") as files:
        files.add("pending_ops", rows)
        files.finish(as_of_ms=1, term=1, cluster_id="c", rules={})
    return directory / "s" / "pending_ops" / "part-00000.parquet"


def of_spark(directory: Path) -> Path:
    """Write pending ops as Spark does those of a generated cluster."""
    source = of_control_plane(directory / "made")
    spark = open_session(row_count=0)
    target = directory / "s" / "pending_ops"
    spark.read.parquet(str(source)).coalesce(1).write.parquet(str(target))
    (path,) = target.glob("*.parquet")
    return path


@pytest.mark.parametrize("written", [of_control_plane, of_spark])
def test_a_flipped_bit_is_never_another_row(
    tmp_path: Path, written: Callable[[Path], Path]
) -> None:
    """
    The file is refused by its table's name, or the bit was none that counts.
    """
    path = written(tmp_path)
    spark, schema = open_session(row_count=0), TABLES["pending_ops"]
    refused: list[str] = []

    for damaged in flipped(path, 12):
        path.write_bytes(damaged)
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        try:
            rows, files = read_below(spark, str(path.parent), "pending_ops/", schema)
            assert rows is not None
            check_files(spark, "pending_ops/", {"file": files[0]}, schema)
            found = [row.asDict() for row in rows.select(*OPS.column_names).collect()]
            assert OPS.to_pylist() == found
        except FAILURES as error:
            refused.append(describe_error(error))

    assert len(refused) > 3


def test_a_flipped_bit_is_never_another_plan(tmp_path: Path) -> None:
    """
    The control plane refuses it.
    """
    snapshot = gather([container(n, "R CLOSED 10", "C=7x2 C=8") for n in range(1, 9)])
    result = verify(
        VerifyRequest(str(snapshot.write(tmp_path / "s")), tmp_path / "out", run_id="r")
    )
    (path,) = result.table("reconcile_plan").glob("*.parquet")
    run = FinishedRun.opened(str(result.directory))
    whole = read_plan(run)

    refused: list[str] = []

    for damaged in flipped(path, 15):
        path.write_bytes(damaged)
        try:
            assert whole == read_plan(run)
        except RefusedError as error:
            refused.append(str(error))

    assert len(refused) > 5


def put(column: str) -> Callable[[pa.Table], pa.Table]:
    """Return a change that fills a column with what is no UTF-8."""

    def change(table: pa.Table) -> pa.Table:
        place = table.schema.get_field_index(column)
        values = pa.array([b"\xff\xfe"] * table.num_rows, pa.binary()).view(pa.string())
        return table.set_column(place, table.schema.field(place), values)

    return change


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("nodes", "rack"),
        ("nodes", "version"),
        ("replicas", "datanode_id"),
        ("replicas", "volume_id"),
        ("replicas", "state"),
        ("replicas", "load_error"),
        ("replicas", "tree_algorithm"),
        ("containers", "state"),
    ],
)
def test_text_that_is_none_is_refused_with_its_column(
    tmp_path: Path, table: str, column: str
) -> None:
    """The column is named in whichever table it is."""
    rows = gather([container(1, "R CLOSED 10", "C=7x2 C=8")])
    snapshot = rows.write(tmp_path / "s", change={table: put(column)})

    with pytest.raises(SnapshotRefused) as raised:
        verify(VerifyRequest(str(snapshot), tmp_path / "out"))

    assert f"table {table}/" in str(raised.value)
    assert column in str(raised.value)
