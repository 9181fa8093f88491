"""Snapshots: the contract's columns, whole or not at all."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from health.tables.snapshot_columns import signed
from merkle.replica import ReplicaState
from scm.api.spark import snapshot_export
from scm.api.spark.snapshot_export import SnapshotData, SnapshotExport, export
from scm.replication.health.health_states import HealthStates
from scm.replication.replication_manager import ReplicationManager
from scm.state.container_queues import ContainerBitmap
from scm.state.entities import Container, ContainerState
from scm.state.options import ScmOptions
from spark_verify.input_columns import TABLES
from suture.errors import Code, UnavailableError
from suture.wire.mapping import snapshot_file
from suture.wire.mapping.snapshot_file import SCHEMAS
from tests.support.control.scm_world import ScmWorld, replica

# The contract, by hand: what the Spark job was promised. Not derived from the code under test.
CONTRACT = {
    "containers": "snapshot_id:string container_id:int64 replication_type:string "
    "replication_factor:int32 ec_data:int32? ec_parity:int32? state:string sequence_id:int64 "
    "acknowledged_bcsid:int64? key_count:int64 used_bytes:int64 state_since_ms:int64 "
    "pipeline_alive:bool suppressed:bool owes_deletes:bool "
    "health_state:string?",
    "replicas": "snapshot_id:string container_id:int64 datanode_id:string replica_index:int32 "
    "state:string origin_datanode_id:string bcsid:int64? block_count:int64 used_bytes:int64 "
    "is_empty:bool tree_algorithm:string? root:int64? settled_root:int64? "
    "tombstones_checksum:int64? tombstone_count:int32? tree_generation:int64? "
    "volume_id:string data_scan_at_ms:int64? "
    "finding_count:int32 is_contradictory:bool is_barred:bool "
    "is_hopeful:bool load_error:string? reported_at_ms:int64",
    "nodes": "snapshot_id:string datanode_id:string address:string rack:string version:string "
    "health:string op_state:string op_expiry_ms:int64? last_heartbeat_at_ms:int64 "
    "has_reported:bool capacity_bytes:int64 available_bytes:int64 queued_replicate:int32 "
    "queued_reconstruct:int32 queued_delete:int32 queued_reconcile:int32",
    "pending_ops": "snapshot_id:string container_id:int64 op:string datanode_id:string "
    "replica_index:int32 deadline_ms:int64 command_id:int64",
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ScmWorld]:
    """Three nodes; three snapshots are kept."""
    with ScmWorld(tmp_path, ScmOptions(snapshot_keep_count=3)).running() as made:
        made.join("dn1", "dn2", "dn3")
        yield made


def rows(exported: SnapshotExport, table: str) -> list[dict[str, object]]:
    """Read one table back."""
    result: list[dict[str, object]] = pq.read_table(exported.path / table).to_pylist()
    return result


def reported(exported: SnapshotExport) -> dict[object, object]:
    """Return which nodes have named all their replicas."""
    return {row["datanode_id"]: row["has_reported"] for row in rows(exported, "nodes")}


class TestSchema:
    @pytest.mark.parametrize("table", sorted(CONTRACT))
    def test_the_files_have_the_contracts_columns(self, world: ScmWorld, table: str) -> None:
        """Names, types, order and nullability, also when there is no row."""
        exported = world.control.queries.export_snapshot()

        (part,) = sorted((exported.path / table).iterdir())

        assert CONTRACT[table].split() == [
            f"{field.name}:{field.type}{'?' if field.nullable else ''}"
            for field in pq.read_schema(part)
        ]

    def test_the_spark_job_reads_what_we_write(self) -> None:
        """Both sides make their types of one declaration; the types agree."""
        for table, schema in SCHEMAS.items():
            theirs = [(f.name, f.type, f.nullable) for f in TABLES[table]]
            assert theirs == [(f.name, f.type, f.nullable) for f in schema]


class TestExport:
    def test_the_world_comes_back(self, world: ScmWorld) -> None:
        """Containers, replicas with their trees, nodes, and what is pending."""
        made = world.made_closed(roots=(7, 7, 2**64 - 1))
        world.control.admin.reconcile([made.container_id])
        world.beat("dn1", replica("dn1", ReplicaState.UNHEALTHY, container_id=77, root=None))

        exported = world.control.queries.export_snapshot()

        (container,) = rows(exported, "containers")
        assert ("CLOSED", 1, 1_000, "RATIS", False) == tuple(
            container[name]
            for name in ("state", "key_count", "used_bytes", "replication_type", "pipeline_alive")
        )
        assert [(1, 7), (1, 7), (1, -1), (77, None)] == [
            (row["container_id"], row["root"]) for row in rows(exported, "replicas")
        ]
        assert {("dn1", "HEALTHY"), ("dn2", "HEALTHY"), ("dn3", "HEALTHY")} == {
            (row["datanode_id"], row["health"]) for row in rows(exported, "nodes")
        }
        assert ["RECONCILE"] * 3 == [row["op"] for row in rows(exported, "pending_ops")]

    def test_a_node_has_reported_once_all_its_replicas_are_named(self, world: ScmWorld) -> None:
        """Neither a report of changes nor a report of an earlier process is enough."""
        world.made_closed()
        world.beat("dn1", full=True)
        world.beat("dn2", replica("dn2", container_id=77))
        before = world.control.queries.export_snapshot()
        world.join("dn1", boot_id=2)

        after = world.control.queries.export_snapshot()

        assert {"dn1": True, "dn2": False, "dn3": False} == reported(before)
        assert {"dn1": False, "dn2": False, "dn3": False} == reported(after)

    def test_the_manifest_says_what_is_there(self, world: ScmWorld) -> None:
        """Its row counts are those of the files."""
        world.made_closed()
        exported = world.control.queries.export_snapshot()

        manifest = json.loads((exported.path / "manifest.json").read_text())

        assert {
            "schema_version": 5,
            "snapshot_id": exported.snapshot_id,
            "as_of_ms": world.clock.now_ms(),
            "term": 1,
            "cluster_id": world.control.state.cluster_id,
            "rules": {
                "maintenance_min": 2,
                "leaving_min": 0,
                "best_origin_copies": 3,
                "other_origin_copies": 2,
                "enough_copies": 0,
                "most_copies": 0,
            },
            "rows": {"containers": 1, "replicas": 3, "nodes": 3, "pending_ops": 0},
            "keys_at_risk": {"key_count": 0, "container_count": 0, "keys": []},
        } == manifest
        for table, count in manifest["rows"].items():
            assert count == pq.read_table(exported.path / table).num_rows
            assert {exported.snapshot_id} >= {row["snapshot_id"] for row in rows(exported, table)}

    def test_the_manifest_names_the_first_keys_at_risk(
        self, world: ScmWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """By name, each with the containers in question, and counts all; others are not named."""
        monkeypatch.setattr(snapshot_export, "KEYS_TOLD_MAX", 2)
        world.made_closed()
        lost = {block.container_id for block in world.write("w", "whole", 10)}
        world.control.clients.finish("w", close=True)
        at_risk = {block.container_id for name in "cab" for block in world.write("x", name, 10)}
        assert not lost & at_risk
        with monkeypatch.context() as patched:
            patched.setattr(ReplicationManager, "at_risk", lambda _: sorted(at_risk))
            exported = world.control.queries.export_snapshot()

        [number] = at_risk
        told = json.loads((exported.path / "manifest.json").read_text())["keys_at_risk"]
        assert {
            "key_count": 3,
            "container_count": 1,
            "keys": [
                {"key": "a", "container_ids": [number]},
                {"key": "b", "container_ids": [number]},
            ],
        } == told

    def test_large_tables_are_written_in_parts(
        self, world: ScmWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every row is in one part, none in two."""
        monkeypatch.setattr(snapshot_file, "ROWS_PER_PART", 4)
        monkeypatch.setattr(snapshot_file, "ROWS_PER_GROUP", 3)
        for container_id in range(1, 9):
            world.beat("dn1", replica("dn1", container_id=container_id))

        exported = world.control.queries.export_snapshot()

        assert len(list((exported.path / "replicas").iterdir())) >= 2
        assert list(range(1, 9)) == sorted(
            row["container_id"]
            for row in rows(exported, "replicas")  # type: ignore[type-var]
        )

    def test_two_snapshots_of_one_moment_have_two_names(self, world: ScmWorld) -> None:
        """A finished snapshot is never written over."""
        first, second = (
            world.control.queries.export_snapshot(),
            world.control.queries.export_snapshot(),
        )

        assert first.path != second.path
        assert (first.path / "manifest.json").exists()

    def test_only_the_newest_are_kept(self, world: ScmWorld) -> None:
        """Disks are finite; what a killed export left goes too."""
        (world.path / "snapshots" / ".0-t1.building" / "containers").mkdir(parents=True)
        made = []
        for _ in range(5):
            world.clock.advance_s(1)
            made.append(world.control.queries.export_snapshot().path)

        assert sorted(made[2:]) == sorted((world.path / "snapshots").iterdir())

    def test_a_snapshot_that_cannot_be_written_leaves_nothing(
        self, world: ScmWorld, tmp_path: Path
    ) -> None:
        """The error has the reason, and no partial snapshot looks complete."""
        blocked = tmp_path / "file"
        blocked.write_text("in the way")

        with pytest.raises(UnavailableError) as caught:
            export(self.empty(world), blocked, keep_count=1)

        assert caught.value.code is Code.DISK_OUT_OF_SPACE
        assert "in the way" == blocked.read_text()

    def test_a_value_that_breaks_the_contract_is_not_written(self, world: ScmWorld) -> None:
        """A null where none is allowed raises; nothing becomes visible."""
        broken = replica("dn1")
        object.__setattr__(broken, "volume_id", None)
        state = SnapshotData(1, 1, "c", [], [], [broken], [])

        with pytest.raises(pa.ArrowInvalid):
            export(state, world.path / "snapshots", keep_count=1)

        assert [] == list((world.path / "snapshots").glob("[0-9]*"))

    def test_a_clock_that_was_set_back_does_not_remove_the_new_snapshot(
        self, world: ScmWorld
    ) -> None:
        """By its name it is the oldest then, and it is the requested one."""
        directory = world.path / "snapshots"
        for instant in (5, 6, 1):
            newest = export(SnapshotData(instant, 1, "c", [], [], [], []), directory, keep_count=2)

        assert (newest.path / "manifest.json").is_file()

    def test_every_column_comes_from_somewhere(self, world: ScmWorld) -> None:
        """
        A column that may be null is null only where there is nothing: none is forgotten.
        """
        full = replace(
            replica("dn1", container_id=7),
            data_scan_at_ms=5,
            load_error="gone",
            is_contradictory=True,
            origin_datanode_id="dn2",
        )
        coded = Container(7, ContainerState.CLOSED, 5, 3, 4, (), scheme="rs-3-2-1024k")
        judged = ContainerBitmap()
        judged.add(7)
        state = SnapshotData(
            1, 1, "c", [], [coded], [full], [], states=HealthStates({}, judged), acknowledged={7: 2}
        )

        exported = export(state, world.path / "snapshots", keep_count=1)

        (row,), (container,) = rows(exported, "replicas"), rows(exported, "containers")
        assert ["settled_root"] == [name for name, value in row.items() if value is None]
        assert [] == [name for name, value in container.items() if value is None]
        assert (5, "gone", True, "dn2", "dn1") == tuple(
            row[name]
            for name in (
                "data_scan_at_ms",
                "load_error",
                "is_contradictory",
                "origin_datanode_id",
                "datanode_id",
            )
        )
        assert (3, 2, 2) == tuple(
            container[name] for name in ("ec_data", "ec_parity", "acknowledged_bcsid")
        )

    def test_a_value_without_a_column_is_refused(self, tmp_path: Path) -> None:
        """
        A name that is spelled in another way is an error, not a null.
        """
        row = {"container_id": 1, "op": "ADD", "datanode_id": "dn1", "replica_index": 0}

        with snapshot_file.writing(tmp_path / "one", "one") as files:
            files.add("pending_ops", [row | {"deadline": 3, "deadline_ms": 3, "command_id": 1}])
            with pytest.raises(ValueError, match=r"pending_ops has no deadline$"):
                files.finish(as_of_ms=1, term=1, cluster_id="c", rules={})

        assert [] == list(tmp_path.iterdir())

    @staticmethod
    def empty(world: ScmWorld) -> SnapshotData:
        """Return a world with nothing in it."""
        return SnapshotData(1, 1, world.control.state.cluster_id, [], [], [], [])


class TestSigned:
    @pytest.mark.parametrize(
        ("unsigned", "expected"),
        [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)],
    )
    def test_the_bits_stay(self, unsigned: int, expected: int) -> None:
        """Two's complement, as Spark and Java read it."""
        assert expected == signed(unsigned)
        assert unsigned == expected % 2**64
