"""A full report by columns says what the same report with a message a replica says."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merkle.checksum import Algorithm
from merkle.replica import ReplicaState
from merkle.tree_summary import TreeSummary
from scm.api import datanode_wire
from scm.api.call_values import Heartbeat
from scm.state.entities import Replica
from suture.errors import RefusedError
from suture.wire.mapping.replica_columns import column_report
from suture.wire.v1 import container_pb2, scm_pb2

STATES = {
    container_pb2.OPEN: ReplicaState.OPEN,
    container_pb2.CLOSING: ReplicaState.CLOSING,
    container_pb2.QUASI_CLOSED: ReplicaState.QUASI_CLOSED,
    container_pb2.CLOSED: ReplicaState.CLOSED,
    container_pb2.UNHEALTHY: ReplicaState.UNHEALTHY,
    container_pb2.DELETED: ReplicaState.DELETED,
    container_pb2.RECOVERING: ReplicaState.RECOVERING,
}
ALGORITHMS = {
    container_pb2.TREE_CRC32C: Algorithm.CRC32C,
    container_pb2.TREE_XXH3_64: Algorithm.XXH3_64,
}
NOW_MS = 1_234
U32, U63, U64 = (st.integers(0, 2**bits - 1) for bits in (32, 63, 64))
WORDS = st.sampled_from(["", "dn1", "dn2", "volume 9"])
TREES = st.builds(
    container_pb2.TreeSummary,
    algorithm=st.sampled_from(list(ALGORITHMS)),
    root=U64,
    generation=U63,
    block_count=U32,
    tombstone_count=U32,
    tombstones_checksum=U64,
)
REPORTS = st.builds(
    container_pb2.ReplicaReport,
    container_id=st.integers(1, 2**63 - 1),
    state=st.sampled_from(list(STATES)),
    used_bytes=U63,
    block_count=U63,
    bcsid=U63,
    origin_datanode_id=WORDS,
    replica_index=st.integers(0, 32),
    is_empty=st.booleans(),
    tree=st.none() | TREES,
    volume_id=WORDS,
    data_scan_at_ms=U63,
    finding_count=st.integers(0, 2**31 - 1),
    load_error=st.sampled_from(["", "", "no descriptor"]),
    contradiction_count=st.integers(0, 2),
)


def said(message: container_pb2.ReplicaReport) -> Replica:
    """Return what a report says, field by field."""
    tree = message.tree
    return Replica(
        container_id=message.container_id,
        datanode_id="dn1",
        state=ReplicaState.UNHEALTHY if message.load_error else STATES[message.state],
        used_bytes=message.used_bytes,
        block_count=message.block_count,
        bcsid=message.bcsid,
        origin_datanode_id=message.origin_datanode_id or "dn1",
        replica_index=message.replica_index,
        is_empty=message.is_empty,
        tree=TreeSummary(
            ALGORITHMS[tree.algorithm],
            tree.root,
            tree.generation,
            tree.block_count,
            tree.tombstone_count,
            tree.tombstones_checksum,
        )
        if message.HasField("tree")
        else None,
        volume_id=message.volume_id,
        data_scan_at_ms=message.data_scan_at_ms,
        finding_count=message.finding_count,
        load_error=message.load_error,
        reported_at_ms=NOW_MS,
        is_contradictory=message.contradiction_count > 0,
    )


def heard(page: scm_pb2.ColumnReport) -> Heartbeat:
    """Return what the control plane reads from the wire of a page."""
    sent = scm_pb2.HeartbeatRequest(datanode_id="dn1", boot_id=1, column_reports=[page])
    came = scm_pb2.HeartbeatRequest.FromString(sent.SerializeToString())
    return datanode_wire.heartbeat_from(came, now_ms=NOW_MS)


def taken(page: scm_pb2.ColumnReport) -> list[Replica]:
    """Return the replicas of a page as the control plane reads it from the wire."""
    (report,) = heard(page).reports
    assert report.is_full
    return list(report.replicas)


class TestForms:
    @settings(deadline=None)
    @given(st.lists(REPORTS, max_size=8))
    def test_column_report_and_message_report_are_equal(
        self, messages: list[container_pb2.ReplicaReport]
    ) -> None:
        """This holds for every content and size."""
        page = scm_pb2.ContainerReport(full=True, last=True, replicas=messages)
        old = scm_pb2.HeartbeatRequest(datanode_id="dn1", boot_id=1, reports=[page])
        expected = [said(message) for message in messages]

        (report,) = datanode_wire.heartbeat_from(old, now_ms=NOW_MS).reports
        assert expected == list(report.replicas)
        assert expected == taken(column_report(page))

    def test_a_page_is_where_it_was(self) -> None:
        """The page has its report id, its number and whether it is the last."""
        page = scm_pb2.ContainerReport(full=True, report_id=7, page=3, last=True)
        request = scm_pb2.HeartbeatRequest(datanode_id="dn1", column_reports=[column_report(page)])
        (report,) = datanode_wire.heartbeat_from(request, now_ms=1).reports

        assert (True, 7, 3, True) == (
            report.is_full,
            report.report_id,
            report.page,
            report.is_last,
        )
        assert not report.replicas

    def test_a_column_that_is_left_out_is_all_zeros(self) -> None:
        """A missing column is zeros, because an older agent does not send it."""
        columns = scm_pb2.ReplicaColumns(
            count=2,
            container_id=(5).to_bytes(8, "little") + (9).to_bytes(8, "little"),
            state=b"\4\4",
        )
        first, second = taken(scm_pb2.ColumnReport(replicas=columns))

        assert (5, 9) == (first.container_id, second.container_id)
        assert (0, None, "dn1", "") == (
            second.used_bytes,
            second.tree,
            second.origin_datanode_id,
            second.load_error,
        )


GOOD = {
    "count": 2,
    "container_id": (1).to_bytes(8, "little") + (2).to_bytes(8, "little"),
    "state": b"\4\4",
}


class TestBroken:
    @pytest.mark.parametrize(
        ("broken", "where", "kept"),
        [
            ({"container_id": bytes(15)}, "container_id", None),
            ({"container_id": bytes(16)}, "container_id[0]", 0),
            ({"container_id": (1).to_bytes(8, "little") + b"\xff" * 8}, "container_id[1]", 1),
            ({"state": b"\4\6"}, "state[1]", 1),
            ({"state": b""}, "state[0]", 0),
            ({"replica_index": b"\0\41"}, "replica_index[1]", 1),
            ({"flags": b"\0\10"}, "flags[1]", 1),
            ({"flags": b"\2\0", "algorithm": b"\7\0"}, "tree.algorithm[0]", 1),
            ({"generation": bytes(15) + b"\x80"}, "tree.generation[1]", 1),
            ({"tree_block_count": bytes(7) + b"\x80" + bytes(8)}, "tree.block_count[0]", 1),
            ({"tombstone_count": bytes(15) + b"\xff"}, "tree.tombstone_count[1]", 1),
            ({"bcsid": bytes(15) + b"\x80"}, "bcsid[1]", 1),
            ({"finding_count": bytes(4) + b"\1" + bytes(11)}, "finding_count[0]", 1),
            ({"volume": (1).to_bytes(4, "little") + bytes(4)}, "volume", None),
            ({"words": ["a", ""]}, "words", None),
            ({"words": ["a\n"], "origin": b"\1\0\0\0\0\0\0\0"}, "origin_datanode_id", 1),
            ({"count": 100_001, "container_id": b"", "state": b""}, "count", None),
        ],
    )
    def test_the_column_is_named_and_the_replica(
        self, broken: dict[str, object], where: str, kept: int | None
    ) -> None:
        """A replica with a broken number is left out alone; columns that do not fit each other say
        nothing of any."""
        columns = scm_pb2.ReplicaColumns(**{**GOOD, **broken})  # type: ignore[arg-type]

        call = heard(scm_pb2.ColumnReport(replicas=columns))

        (refused,) = call.refused
        assert refused.startswith(f"column_reports[0].replicas.{where}: ")
        assert ([] if kept is None else [kept]) == [len(report.replicas) for report in call.reports]

    def test_a_page_that_has_no_place_for_a_number_is_not_made(self) -> None:
        """The agent sends it with a message a replica then: one number more or less in it would be
        that of another replica."""
        good = container_pb2.ReplicaReport(container_id=1, state=container_pb2.CLOSED)
        bad = container_pb2.ReplicaReport(container_id=2, state=container_pb2.CLOSED)
        bad.replica_index = 2**20

        with pytest.raises(RefusedError, match=r"replicas\[1\]\.replica_index"):
            column_report(scm_pb2.ContainerReport(full=True, replicas=[good, bad]))

    @settings(deadline=None)
    @given(
        st.fixed_dictionaries(
            {"count": st.integers(0, 3)},
            optional={
                name: st.binary(max_size=24)
                for name in (
                    "container_id",
                    "state",
                    "flags",
                    "algorithm",
                    "root",
                    "error",
                    "origin",
                )
            }
            | {"words": st.lists(st.text(max_size=2), max_size=2)},
        )
    )
    def test_malformed_column_report_is_refused_without_other_errors(
        self, fields: dict[str, object]
    ) -> None:
        """The fields come from an untrusted peer."""
        columns = scm_pb2.ReplicaColumns(**fields)  # type: ignore[arg-type]

        call = heard(scm_pb2.ColumnReport(replicas=columns))

        assert bool(call.refused) == (
            [fields["count"]] != [len(report.replicas) for report in call.reports]
        )
