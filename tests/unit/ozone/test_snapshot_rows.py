"""What an SCM of Ozone tells, as rows of a snapshot."""

from typing import Any

import pytest

from ozone.clients.messages import RESPONSE
from ozone.cluster.listings import datanode_id
from ozone.cluster.snapshot_rows import (
    ExportContext,
    UnsupportedValue,
    container_row,
    node_row,
    replica_row,
)
from suture.wire.mapping.snapshot_file import SCHEMAS

NOW = ExportContext(1_000_000, True)
PIPELINE = "5a3f1dae-1bed-449f-973b-c71b1ada4f18"
DATANODE = "9a6cd76e-e427-487c-bd46-6f00038a57fc"


def container(**fields: object) -> Any:
    """Return a closed Ratis container of three replicas."""
    made = RESPONSE().list_containers.containers.add()
    defaults = {"container_id": 7, "state": 4, "factor": 3, "type": 1, "sequence_id": 5}
    for name, value in (defaults | fields).items():
        setattr(made, name, value)
    return made


def replica(**fields: object) -> Any:
    """Return a closed replica with a tree."""
    made = RESPONSE().get_replicas.replicas.add()
    made.datanode.uuid = DATANODE
    defaults = {"container_id": 7, "state": "CLOSED", "sequence_id": 5, "key_count": 2}
    for name, value in (defaults | {"checksum": 99} | fields).items():
        setattr(made, name, value)
    return made


def named(table: str, row: dict[str, object]) -> dict[str, object]:
    """Return a row with all columns of its table, of which it lacks only those that may be null."""
    schema = SCHEMAS[table]
    needed = {field.name for field in schema if not field.nullable} - {"snapshot_id"}
    assert needed <= row.keys() <= set(schema.names)
    return dict.fromkeys(schema.names[1:]) | row


def row_of(made: Any, pipelines: frozenset[str] = frozenset()) -> dict[str, object]:
    """Return a container's row by names."""
    return named("containers", container_row(made, pipelines, NOW))


class TestReplica:
    @pytest.mark.parametrize(
        ("fields", "root"),
        [
            ({"checksum": 99}, 99),
            ({"checksum": 2**32 - 1}, 2**32 - 1),
            ({"checksum": 0}, None),
            ({"checksum": 0, "key_count": 0}, 0),
        ],
    )
    def test_no_tree_is_not_a_root_of_zero(
        self, fields: dict[str, object], root: int | None
    ) -> None:
        """Ozone reports 0 for both. With blocks it means that there is no tree."""
        row = named("replicas", replica_row(replica(**fields), NOW))

        assert root == row["root"]
        assert ("crc32c" if root is not None else None) == row["tree_algorithm"]

    def test_an_older_datanode_reports_no_root(self) -> None:
        """No root is invented for a container without blocks."""
        made = replica(key_count=0)
        made.ClearField("checksum")

        assert named("replicas", replica_row(made, NOW))["root"] is None

    def test_a_commit_id_that_is_not_known_is_null(self) -> None:
        """A datanode that has none reports -1."""
        assert named("replicas", replica_row(replica(sequence_id=-1), NOW))["bcsid"] is None

    @pytest.mark.parametrize("fields", [{"state": "FROZEN"}, {"checksum": -1}, {"checksum": 2**32}])
    def test_unknown_replica_fields_are_refused(self, fields: dict[str, object]) -> None:
        """The container is left out by name, and is not misread."""
        with pytest.raises(UnsupportedValue):
            replica_row(replica(**fields), NOW)


class TestContainer:
    def test_an_erasure_coded_one_has_its_code(self) -> None:
        """Its width is that of data and parity together."""
        made = container(type=4, factor=0)
        made.coding.data, made.coding.parity = 3, 2

        row = row_of(made)

        assert ("EC", 5, 3, 2) == tuple(
            row[name] for name in ("replication_type", "replication_factor", "ec_data", "ec_parity")
        )

    def test_an_open_one_is_alive_on_an_open_pipeline(self) -> None:
        """On another it is not, and a closed one never is."""
        made = container(state=1)
        made.pipeline_id.id = PIPELINE

        assert row_of(made, frozenset({PIPELINE}))["pipeline_alive"] is True
        assert row_of(made)["pipeline_alive"] is False
        made.state = 4
        assert row_of(made, frozenset({PIPELINE}))["pipeline_alive"] is False

    def test_change_during_the_export_is_not_in_the_future(self) -> None:
        """The reader refuses a snapshot with rows later than itself."""
        assert 1_000_000 == row_of(container(state_since_ms=1_000_500))["state_since_ms"]

    @pytest.mark.parametrize(
        "fields", [{"type": 3}, {"type": 9}, {"state": 8}, {"factor": 0}, {"type": 4, "factor": 3}]
    )
    def test_unknown_container_fields_are_refused(self, fields: dict[str, object]) -> None:
        """The fields are words of a later Ozone, a container without replicas, and an erasure
        code without numbers.
        """
        with pytest.raises(UnsupportedValue):
            container_row(container(**fields), frozenset(), NOW)


class TestNode:
    def test_states_are_ozones_by_number(self) -> None:
        """The two lists have other orders than ours."""
        node = RESPONSE().query_nodes.nodes.add()
        node.states.append(6)
        node.op_states.append(3)
        node.datanode.op_state_expiry_s = 12

        row = named("nodes", node_row(DATANODE, node, None, NOW))

        assert ("HEALTHY_READONLY", "IN_MAINTENANCE", 12_000) == tuple(
            row[name] for name in ("health", "op_state", "op_expiry_ms")
        )

    def test_an_id_is_found_however_it_is_written(self) -> None:
        """Ozone has three fields for it, of which older and newer ones fill others."""
        old, newer, newest = (RESPONSE().query_nodes.nodes.add().datanode for _ in range(3))
        old.uuid = DATANODE
        for halves in (newer.uuid128, newest.id.uuid):
            halves.most, halves.least = -7319238423109744516, -4808033506321344516

        assert {DATANODE} == {datanode_id(made) for made in (old, newer, newest)}
