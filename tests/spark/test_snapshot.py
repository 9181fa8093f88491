"""A snapshot that cannot be believed is refused, with the rows and columns named."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from health.tables.snapshot_columns import ROWS_PER_CONTAINER_MAX
from spark_verify.errors import SnapshotRefused
from spark_verify.input_columns import AHEAD_MAX_MS
from spark_verify.pipeline import VerifyRequest, verify
from spark_verify.snapshot.tables import FOOTER_BYTES_MAX
from tests.support.verification.snapshots import AS_OF_MS, SnapshotRows, container, gather

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

LATE_MS = AS_OF_MS + AHEAD_MAX_MS + 1


def rows() -> SnapshotRows:
    return gather(
        [
            container(1, "R CLOSED 10", "C=7x3"),
            container(2, "EC CLOSED", "C#1=1 C#2=2 C#3=3 C#4=4 C#5=5", ops="+#1"),
        ]
    )


def refusal(directory: Path, tmp_path: Path) -> str:
    with pytest.raises(SnapshotRefused) as raised:
        verify(VerifyRequest(str(directory), tmp_path / "out"))
    assert list((tmp_path / "out").glob("**/*.parquet")) == []
    return str(raised.value)


def put(column: str, row: int, value: object) -> Callable[[pa.Table], pa.Table]:
    """Return a change that sets one cell."""

    def change(table: pa.Table) -> pa.Table:
        cells: list[Any] = table.column(column).to_pylist()
        cells[row] = value
        place = table.schema.get_field_index(column)
        kind = table.schema.field(column).with_nullable(True)
        return table.set_column(place, kind, pa.array(cells, kind.type))

    return change


class TestRefused:
    """One fault each."""

    CASES = (
        ("containers", lambda t: t.drop(["sequence_id"]), ["column sequence_id is missing"]),
        (
            "replicas",
            lambda t: t.set_column(
                t.schema.get_field_index("root"), "root", pc.cast(t["root"], pa.string())
            ),
            ["column root is string, must be bigint"],
        ),
        (
            "replicas",
            lambda t: t.set_column(
                t.schema.get_field_index("root"),
                "root",
                pc.cast(t["root"].fill_null(0), "uint64", safe=False),
            ),
            ["column root is Int(bitWidth=64, isSigned=false), must be bigint"],
        ),
        (
            "nodes",
            lambda t: t.set_column(
                0, t.schema.names[0], pa.array([[name] for name in t[0].to_pylist()])
            ),
            ["is missing, must be string"],
        ),
        (
            "replicas",
            lambda t: t.append_column("root", t["root"]),
            ["column root is bigint and bigint, must be bigint"],
        ),
        ("replicas", put("state", 1, "SLEEPY"), ["state is none of", "container_id 1", "dn-1-1"]),
        ("containers", put("state", 0, "SHUT"), ["state is none of", "container_id 1"]),
        ("nodes", put("health", 2, "TIRED"), ["health is none of", "dn-1-2"]),
        ("nodes", put("op_state", 2, "AWAY"), ["op_state is none of", "dn-1-2"]),
        ("pending_ops", put("op", 0, "DANCE"), ["op is none of", "container_id 2"]),
        ("replicas", put("datanode_id", 1, None), ["datanode_id is null", "container_id 1"]),
        ("replicas", put("used_bytes", 1, -1), ["used_bytes is negative", "dn-1-1"]),
        (
            "replicas",
            put("is_empty", 1, None),
            ["is_empty is null", "(container_id 1, datanode_id dn-1-1"],
        ),
        (
            "replicas",
            put("bcsid", 1, -1),
            ["bcsid is negative", "(container_id 1, datanode_id dn-1-1"],
        ),
        ("replicas", put("replica_index", 4, 6), ["container 2", "index 6 out of range"]),
        ("replicas", put("replica_index", 0, 1), ["container 1", "index 1 out of range"]),
        ("replicas", put("replica_index", 4, 99), ["replica_index is above", "container_id 2"]),
        ("replicas", put("datanode_id", 1, "dn-1-0"), ["container 1", "two replicas on datanode"]),
        ("replicas", put("datanode_id", 1, "dn-9"), ["container 1", "dn-9", "nodes/"]),
        ("containers", put("ec_parity", 1, None), ["name no code", "container_id 2"]),
        (
            "containers",
            put("container_id", 1, 1),
            ["lists a container twice; first: container_id 1"],
        ),
        ("nodes", put("datanode_id", 1, "dn-1-0"), ["nodes/ lists twice: datanode_id dn-1-0"]),
        ("replicas", put("snapshot_id", 0, "other"), ["snapshot_id is not the manifest's"]),
        ("replicas", put("datanode_id", 0, ""), ["datanode_id is empty", "container_id 1"]),
        ("replicas", put("reported_at_ms", 0, LATE_MS), ["reported_at_ms is later", "dn-1-0"]),
        ("nodes", put("last_heartbeat_at_ms", 1, LATE_MS), ["heartbeat_at_ms is later", "dn-1-1"]),
        ("containers", put("state_since_ms", 1, LATE_MS), ["since_ms is later", "container_id 2"]),
        ("pending_ops", put("datanode_id", 0, "dn-9"), ["datanode is in no other table", "dn-9"]),
        (
            "pending_ops",
            put("container_id", 0, 9),
            ["container is in no other table", "container_id 9"],
        ),
        ("replicas", lambda t: t.slice(1), ["replicas/ has 7 rows, its manifest says 8"]),
    )

    @pytest.mark.parametrize(
        ("table", "change", "words"), CASES, ids=[f"{c[0]}-{c[2][0]}" for c in CASES]
    )
    def test_a_damaged_table_is_refused_by_name(
        self,
        tmp_path: Path,
        table: str,
        change: Callable[[pa.Table], pa.Table],
        words: list[str],
    ) -> None:
        """
        The message names the table, the column or the rows; nothing is written.
        """
        directory = rows().write(tmp_path / "snapshot", change={table: change})

        message = refusal(directory, tmp_path)

        assert [word for word in words if word not in message] == [], message

    def test_footer_that_is_longer_than_a_footer_can_be_is_refused(self, tmp_path: Path) -> None:
        """The driver reads no more than the maximum, however large the file is."""
        directory = rows().write(tmp_path / "snapshot")
        with (directory / "replicas" / "part-00000.parquet").open("r+b") as file:
            file.truncate(2 * FOOTER_BYTES_MAX)
            file.seek(-8, os.SEEK_END)
            file.write((2 * FOOTER_BYTES_MAX - 8).to_bytes(4, "little") + b"PAR1")

        message = refusal(directory, tmp_path)

        assert (
            "replicas/ cannot be read: part-00000.parquet: Parquet file size is 67108864" in message
        )

    def test_a_file_of_an_older_release_does_not_hide_among_others(self, tmp_path: Path) -> None:
        """One part file with another column type makes the table invalid."""
        directory = rows().write(tmp_path / "snapshot")
        table = rows().table("replicas")
        place = table.schema.get_field_index("root")
        old = table.set_column(place, "root", pc.cast(table["root"], pa.string()))
        pq.write_table(old, directory / "replicas" / "part-00001.parquet")

        message = refusal(directory, tmp_path)

        assert "replicas/" in message
        assert "root" in message

    def test_more_replicas_of_a_container_than_can_be_are_refused(self, tmp_path: Path) -> None:
        """
        By their number, whatever else is wrong with them.
        """
        crowd = rows()
        first = crowd.replicas[0]
        crowd.replicas += [first] * (ROWS_PER_CONTAINER_MAX - 3)
        crowd.replicas.append(replace(first, state="UNHEALTHY"))
        directory = crowd.write(tmp_path / "snapshot")

        with pytest.raises(SnapshotRefused, match=r"replicas/.* 1: 16384 replicas, 0 pending_ops"):
            verify(VerifyRequest(str(directory), tmp_path / "out"))

    def test_a_cluster_of_which_a_whole_table_is_missing_is_refused(self, tmp_path: Path) -> None:
        """
        No node, no replica of anything, no container of any replica, too many ops of one.
        """
        whole = rows()
        many = [replace(whole.pending_ops[0], command_id=i) for i in range(16_384)]
        cases = {
            "nodes/ is empty": replace(whole, nodes=[]),
            "replicas/ is empty, and containers hold keys: first: 1, 2": replace(
                whole, replicas=[], pending_ops=[]
            ),
            "containers/ is empty, and replicas/ has 8 rows": replace(whole, containers=[]),
            "container_id 2: 5 replicas, 16384 pending_ops": replace(whole, pending_ops=many),
        }
        for i, (words, less) in enumerate(cases.items()):
            directory = less.write(tmp_path / f"s{i}")

            assert words in refusal(directory, tmp_path)

    def test_a_missing_table_is_refused(self, tmp_path: Path) -> None:
        """
        Three tables are no snapshot.
        """
        directory = rows().write(tmp_path / "snapshot")
        (directory / "nodes").rename(tmp_path / "elsewhere")

        assert "nodes/" in refusal(directory, tmp_path)

    def test_the_same_rows_without_a_fault_pass(self, tmp_path: Path) -> None:
        """
        The refusals above are not for everything.
        """
        good = rows()
        good.replicas = [replace(row) for row in good.replicas]

        result = verify(VerifyRequest(str(good.write(tmp_path / "snapshot")), tmp_path / "out"))

        assert result.summary["exit_code"] == 0

    @pytest.mark.parametrize("name", ["_part-00001.parquet", ".part-00001.parquet"])
    def test_a_file_that_spark_would_leave_out_is_missed(self, tmp_path: Path, name: str) -> None:
        """Spark skips hidden names without an error, and the manifest counts their rows."""
        directory = rows().write(tmp_path / "snapshot")
        table = rows().table("replicas")
        pq.write_table(table.slice(0, 5), directory / "replicas" / "part-00000.parquet")
        pq.write_table(table.slice(5), directory / "replicas" / name)

        assert "replicas/ has 5 rows, its manifest says 8" in refusal(directory, tmp_path)
