"""Files whose bytes changed, and such that nobody could have meant, are refused by name."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent.errors import Refused
from agent.rpc.wire.plan_file import Run, read_plan
from agent.rpc.wire.snapshot_file import writing
from spark_verify.errors import SnapshotRefused
from spark_verify.file_systems import Place
from spark_verify.pipeline import Request, verify
from spark_verify.snapshot.snapshot_reading import groups_of, parquet_file, part_of, read_part
from spark_verify.tasks.result_files import write
from tests.support.verification.snapshots import container, gather

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


def of_task(directory: Path) -> Path:
    """Write rows as a task writes those of a result."""
    write(OPS, Place.of(directory), "00000")
    return directory / "part-00000.parquet"


@pytest.mark.parametrize("written", [of_control_plane, of_task])
def test_a_flipped_bit_is_never_another_row(
    tmp_path: Path, written: Callable[[Path], Path]
) -> None:
    """
    The file is refused by its name and its table's, or the bit was none that counts.
    """
    path = written(tmp_path)
    with parquet_file(Place.of(path)) as opened:
        part = part_of("pending_ops", [(str(path), group) for group in groups_of(opened)])
    refused: list[str] = []

    for damaged in flipped(path, 150):
        path.write_bytes(damaged)
        try:
            assert OPS.to_pydict() == read_part(part, OPS.schema).to_pydict()
        except SnapshotRefused as error:
            refused.append(str(error))

    assert len(refused) > 50
    told = "table pending_ops/ cannot be read: part-00000.parquet: "
    assert [] == [words for words in refused if told not in words]


def test_a_flipped_bit_is_never_another_plan(tmp_path: Path) -> None:
    """
    The control plane refuses it.
    """
    snapshot = gather([container(n, "R CLOSED 10", "C=7x2 C=8") for n in range(1, 9)])
    result = verify(Request(str(snapshot.write(tmp_path / "s")), tmp_path / "out", run_id="r"))
    (path,) = result.table("reconcile_plan").iterdir()
    run = Run.opened(str(result.directory))
    whole = read_plan(run)

    refused: list[str] = []

    for damaged in flipped(path, 15):
        path.write_bytes(damaged)
        try:
            assert whole == read_plan(run)
        except Refused as error:
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
    """
    Wherever it would have been told first.
    """
    rows = gather([container(1, "R CLOSED 10", "C=7x2 C=8")])
    snapshot = rows.write(tmp_path / "s", change={table: put(column)})

    with pytest.raises(SnapshotRefused) as raised:
        verify(Request(str(snapshot), tmp_path / "out"))

    words = f"table {table}/ cannot be read: part-00000.parquet: column {column}: Invalid UTF8"
    assert words in str(raised.value)


def test_a_file_that_goes_while_it_is_read_is_named(tmp_path: Path) -> None:
    """
    As one that is damaged.
    """
    pq.write_table(OPS, tmp_path / "part-00000.parquet")
    with parquet_file(Place.of(tmp_path / "part-00000.parquet")) as opened:
        part = part_of("replicas", [(str(tmp_path / "gone.parquet"), groups_of(opened)[0])])

    with pytest.raises(SnapshotRefused, match=r"table replicas/ cannot be read: gone\.parquet"):
        read_part(part, OPS.schema)
