"""Rows: what is written is what is read, and damage is noticed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merkle.replica import ReplicaState
from scm.state import records
from scm.state.entities import (
    Allocation,
    Container,
    ContainerState,
    DeleteTransaction,
    Hold,
    Key,
    KeyBlock,
    Node,
    OpState,
    Replica,
)
from scm.state.replicas import replica_rows
from tests.support.control.scm_world import summary

U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=12)
REPLICAS = st.builds(
    Replica,
    container_id=U64,
    datanode_id=TEXT,
    state=st.sampled_from(ReplicaState),
    used_bytes=U64,
    block_count=U64,
    bcsid=U64,
    origin_datanode_id=TEXT,
    replica_index=st.integers(0, 14),
    is_empty=st.booleans(),
    tree=st.none() | st.builds(summary, U64, tombstones=U64),
    volume_id=TEXT,
    data_scan_at_ms=U64,
    finding_count=U64,
    load_error=TEXT,
    reported_at_ms=U64,
)


class TestRows:
    @settings(deadline=None)
    @given(REPLICAS)
    def test_a_replica_survives_its_row(self, replica: Replica) -> None:
        """Every field comes back, also unsigned 64-bit ones and any text."""
        assert replica == replica_rows.replica_from(replica_rows.replica_row(replica))

    @settings(deadline=None)
    @given(
        st.builds(Key, TEXT, U64, U64, st.lists(st.builds(KeyBlock, U64, U64, U64, U64)).map(tuple))
    )
    def test_a_key_survives_its_row(self, key: Key) -> None:
        """Blocks keep their order."""
        assert key == records.KEY.value(records.KEY.row(key))

    @settings(deadline=None)
    @given(REPLICAS, st.data())
    def test_any_flipped_bit_is_noticed(self, replica: Replica, data: st.DataObject) -> None:
        """A damaged row raises; it is never read as another value."""
        row = bytearray(replica_rows.replica_row(replica))
        bit = data.draw(st.integers(0, len(row) * 8 - 1))
        row[bit // 8] ^= 1 << (bit % 8)

        with pytest.raises(records.DamagedRow):
            replica_rows.replica_from(bytes(row))

    def test_fields_lie_in_their_order(self) -> None:
        """The rows are derived from the fields, so another order would be another format."""
        node = Node("dn1", "dn1:1", "/r", "0.1", 9, OpState.IN_SERVICE, 3, 1, 2, False, 1)
        container = Container(
            container_id=1,
            state=ContainerState.OPEN,
            replication_factor=3,
            sequence_id=4,
            state_since_ms=5,
            pipeline=("dn1", "dn2"),
            client_id="c",
            is_sealed=True,
            allocated_bytes=6,
            allocated_bcsid=7,
            committed_bytes=8,
            committed_count=9,
            close_reason="why",
            scheme="rs-3-2-1024k",
        )
        unpacked = [
            (records.NODE.row(node), 11),
            (records.CONTAINER.row(container), 14),
            (records.ALLOCATION.row(Allocation(1, 2, 3, 4, "c")), 5),
            (records.TRANSACTION.row(DeleteTransaction(1, 2, (3, 4), 5, ("dn1",))), 6),
            (records.HOLD.row(Hold(1, "dn1", 2, "why")), 4),
        ]

        assert [
            ["dn1", "dn1:1", "/r", "0.1", 9, "IN_SERVICE", 3, 1, 2, False, 1],
            [1, "OPEN", 3, 4, 5, ["dn1", "dn2"], "c", True, 6, 7, 8, 9, "why", "rs-3-2-1024k"],
            [1, 2, 3, 4, "c"],
            [1, 2, [3, 4], 5, ["dn1"], False],
            [1, "dn1", 2, "why"],
        ] == [records.unpack(row, count) for row, count in unpacked]

    @pytest.mark.parametrize("row", [b"", b"abc", records.pack([1, 2])])
    def test_a_row_of_another_shape_is_refused(self, row: bytes) -> None:
        """Too short or another number of fields is damage too."""
        with pytest.raises(records.DamagedRow):
            replica_rows.replica_from(row)
