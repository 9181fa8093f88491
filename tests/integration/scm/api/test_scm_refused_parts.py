"""What of a datanode's report breaks a rule is left out alone: the datanode is heard."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from scm.api.calls.control import ControlPlane
from scm.api.cluster_status.cluster_look import judged
from scm.state.entities import NodeHealthState
from suture.errors import Code
from suture.wire.mapping.errors import error_from
from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.control.fake_datanode import FakeDatanode, report
from tests.support.control.scm_world import ScmWorld, container, pending

TOO_MUCH = 2**64 - 4096  # as a counter says that went below zero


@dataclass
class Served:
    """A control plane behind gRPC, and one datanode that calls it."""

    world: ScmWorld
    node: FakeDatanode

    @property
    def control(self) -> ControlPlane:
        """What decides behind the server."""
        return self.world.control

    def held(self) -> dict[int, int]:
        """Return the commit ids of what the datanode is known to hold, by container."""
        return {
            replica.container_id: replica.bcsid
            for replica in self.world.state.replicas.values()
            if replica.datanode_id == "dn1"
        }

    def said(self) -> str:
        """Return why it is not known that all is whole."""
        look, _nodes = self.control.queries.cluster_facts()
        return "; ".join(reason.text for reason in judged(look).reasons)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Serve a control plane on a free port; dn1 has joined, with whole copies of two containers."""
    with (
        ScmWorld(tmp_path).running() as world,
        world.served() as address,
        grpc.insecure_channel(address) as channel,
    ):
        node = FakeDatanode(Stub(channel, SCM), "dn1")
        with world.state.change() as change:
            for number in (1, 2):
                change.put(world.state.containers, container(container_id=number))
        node.register()
        node.report_full(told(1), told(2))
        yield Served(world, node)


def told(container_id: int, bcsid: int = 5, **fields: int) -> container_pb2.ReplicaReport:
    """Return what is told of a closed replica."""
    told = report(container_id, container_pb2.CLOSED, bcsid=bcsid, root=7)
    for name, value in fields.items():
        setattr(told, name, value)
    return told


def full(*replicas: container_pb2.ReplicaReport, report_id: int = 2) -> scm_pb2.ContainerReport:
    """Return a full report of one page."""
    return scm_pb2.ContainerReport(full=True, report_id=report_id, last=True, replicas=replicas)


class TestHeard:
    """One number that nobody can believe does not silence a datanode: it would be taken for dead,
    and all that it has would be copied."""

    def test_a_volume_is_left_out_alone(self, served: Served) -> None:
        """The heartbeat is accepted, and the other volume and the replicas count."""
        good, bad = (*served.node.volumes(), *served.node.volumes())
        bad.volume_id, bad.used_bytes = "volume-2", TOO_MUCH
        served.world.clock.advance_s(5)

        served.node.stub.Heartbeat(
            scm_pb2.HeartbeatRequest(
                datanode_id="dn1",
                boot_id=1,
                volumes=[bad, good],
                reports=[scm_pb2.ContainerReport(replicas=[told(1, bcsid=6)])],
            )
        )

        (view,) = served.control.queries.nodes()
        assert view.live is not None
        assert served.world.clock.monotonic_s() == view.live.heard_at_s
        assert ["volume-1"] == [volume.volume_id for volume in view.live.volumes]
        assert {1: 6, 2: 5} == served.held()
        assert "volumes[0].used_bytes" in served.said()

    def test_a_datanode_joins_without_a_volume_that_nobody_can_believe(
        self, served: Served
    ) -> None:
        """
        A restart of its agent, or of the control plane, comes to the same.
        """
        other = FakeDatanode(served.node.stub, "dn2", capacity_bytes=TOO_MUCH)

        other.register()

        assert NodeHealthState.HEALTHY is served.control.queries.nodes()[1].health
        assert "dn2: volumes[0].capacity_bytes" in served.said()

    def test_an_answer_is_left_out_alone(self, served: Served) -> None:
        """
        The command that it should have named runs out, and the one beside it has its answer.
        """
        with served.world.state.change() as change:
            change.put(served.world.state.commands, pending(7, container_id=1))
        done = scm_pb2.CommandStatus.EXECUTED
        good = scm_pb2.CommandStatus(command_id=7, state=done, type="reconcile", container_id=1)
        bad = scm_pb2.CommandStatus(command_id=TOO_MUCH, state=done, type="reconcile")

        served.node.heartbeat(statuses=(bad, good))

        assert served.world.state.commands.get(7) is None
        assert "command_statuses[0].command_id" in served.said()

    def test_queues_and_states_that_nobody_can_believe_are_left_out(self, served: Served) -> None:
        """Queues and states are hints or repeated later, and the rest of the heartbeat counts."""
        request = scm_pb2.HeartbeatRequest(
            datanode_id="dn1",
            boot_id=1,
            volumes=served.node.volumes(),
            queues=[scm_pb2.QueueCount(type=""), scm_pb2.QueueCount(type="delete", count=3)],
            op_state="ASLEEP",
            op_expiry_ms=TOO_MUCH,
        )

        served.node.stub.Heartbeat(request)

        (view,) = served.control.queries.nodes()
        assert view.live is not None
        assert (("delete", 3),) == view.live.queues
        assert served.world.clock.monotonic_s() == view.live.heard_at_s
        assert "op_state: 'ASLEEP' is none of" in served.said()

    @pytest.mark.parametrize("datanode_id", ["dn1\n", ""])
    def test_heartbeat_without_a_valid_datanode_id_is_refused(
        self, served: Served, datanode_id: str
    ) -> None:
        """No part of a report from an unidentified caller is used."""
        with pytest.raises(grpc.RpcError) as refused:
            served.node.stub.Heartbeat(scm_pb2.HeartbeatRequest(datanode_id=datanode_id, boot_id=1))

        assert Code.MALFORMED_REQUEST is error_from(refused.value).code


class TestReplicas:
    """A replica of which a number cannot be believed is as it was known, and there."""

    @pytest.mark.parametrize("by_columns", [False, True], ids=["messages", "columns"])
    def test_refused_part_of_a_full_report_does_not_remove_its_replica(
        self, served: Served, by_columns: bool
    ) -> None:
        """Otherwise the replica would be copied again, or count as lost."""
        replicas = [told(1, bcsid=6), told(2, replica_index=200), told(3)]
        request = scm_pb2.HeartbeatRequest(datanode_id="dn1", boot_id=1)
        if by_columns:
            columns = scm_pb2.ReplicaColumns(
                count=3,
                container_id=b"".join(n.to_bytes(8, "little") for n in (1, 2, 3)),
                state=b"\4\4\4",
                bcsid=b"".join(n.to_bytes(8, "little") for n in (6, 5, 5)),
                replica_index=bytes((0, 200, 0)),
            )
            request.column_reports.add(report_id=2, last=True, replicas=columns)
        else:
            request.reports.append(full(*replicas))

        served.node.stub.Heartbeat(request)

        assert {1: 6, 2: 5, 3: 5} == served.held()
        assert "replica_index" in served.said()

    def test_refused_change_between_pages_does_not_remove_its_replica(self, served: Served) -> None:
        """A replica that changes between two pages of a full report is named by neither."""
        first = scm_pb2.ContainerReport(full=True, report_id=2, replicas=[told(1)])
        served.node.heartbeat(first)
        served.node.report_some(told(2, used_bytes=TOO_MUCH))

        served.node.heartbeat(
            scm_pb2.ContainerReport(full=True, report_id=2, page=1, last=True, replicas=[told(3)])
        )

        assert {1, 2, 3} == set(served.held())

    def test_replica_missing_from_a_full_report_is_removed(self, served: Served) -> None:
        """The replica is removed also if another part of the report is refused."""
        served.node.heartbeat(full(told(3), told(4, block_count=TOO_MUCH)))

        assert {3} == set(served.held())

    def test_a_page_that_cannot_be_read_removes_nothing(self, served: Served) -> None:
        """Columns of different lengths are refused, and the heartbeat is accepted."""
        torn = scm_pb2.ReplicaColumns(count=2, container_id=bytes(15), state=b"\4\4")
        served.world.clock.advance_s(5)

        served.node.stub.Heartbeat(
            scm_pb2.HeartbeatRequest(
                datanode_id="dn1",
                boot_id=1,
                column_reports=[scm_pb2.ColumnReport(report_id=2, last=True, replicas=torn)],
            )
        )

        assert {1, 2} == set(served.held())
        (view,) = served.control.queries.nodes()
        assert view.live is not None
        assert served.world.clock.monotonic_s() == view.live.heard_at_s


class TestTold:
    def test_refused_part_is_reported_until_two_clean_hours_have_passed(
        self, served: Served
    ) -> None:
        """A full report comes every hour, so two hours without an error clear it."""
        served.node.heartbeat(full(told(1), told(2, block_count=TOO_MUCH)))
        assert 1 == served.control.queries.figures().refusing

        served.world.clock.advance_s(3_600)
        served.node.heartbeat()
        assert "part of what 1 datanode reports" in served.said()

        served.world.clock.advance_s(3_601)
        served.node.heartbeat()
        assert "part of what" not in served.said()
        assert 0 == served.control.queries.figures().refusing

    def test_refused_part_of_a_removed_datanode_is_not_reported(self, served: Served) -> None:
        """A removed datanode reports nothing any more."""
        served.node.heartbeat(full(told(1), told(2, block_count=TOO_MUCH)))
        served.world.clock.advance_s(3_600)
        served.control.tick()
        served.control.safe_mode.leave()

        (done,) = served.control.parting.remove_nodes(["dn1"], is_forced=True, is_dry_run=False)

        assert ("OK", 0) == (done.code, served.control.queries.figures().refusing)

    def test_whoever_asks_for_the_status_is_told(self, served: Served) -> None:
        """`suture status` shows it beside the other problems of the control plane."""
        served.node.heartbeat(full(told(1), told(2, block_count=TOO_MUCH)))

        counts = served.node.stub.CountContainers(scm_pb2.CountContainersRequest())

        (line,) = (reason for reason in counts.reasons if "block_count" in reason)
        assert "dn1: reports[0].replicas[1].block_count" in line


class TestOtherClusters:
    """A datanode of another cluster is refused, and an operator sees that: perhaps the state here
    is not the one that its cluster had."""

    def refused(self, served: Served, datanode_id: str = "dn9") -> None:
        """Call as a datanode of another cluster."""
        with pytest.raises(grpc.RpcError) as refused:
            FakeDatanode(served.node.stub, datanode_id).register(cluster_id="CID-other")
        assert Code.WRONG_CLUSTER is error_from(refused.value).code

    def test_refused_datanode_is_shown_while_it_calls(self, served: Served) -> None:
        """`suture status` and the verdict name it, until it has not called for five minutes."""
        self.refused(served)

        counts = served.node.stub.CountContainers(scm_pb2.CountContainersRequest())
        for said in (served.said(), "; ".join(counts.reasons)):
            assert "1 datanode calls and is refused: cannot register datanode dn9" in said
            assert "it belongs to cluster CID-other" in said
        assert 0 == served.control.queries.figures().refusing
        served.world.clock.advance_s(301)
        assert "dn9" not in served.said()

    def test_datanode_that_is_let_in_is_shown_no_more(self, served: Served) -> None:
        """Its volumes were of another cluster, and are of this one now."""
        self.refused(served)

        FakeDatanode(served.node.stub, "dn9").register()

        assert "dn9" not in served.said()

    def test_refused_datanodes_are_counted_up_to_a_bound(self, served: Served) -> None:
        """A caller may name any number of them."""
        for number in range(1_005):
            served.control.refused_parts.mark_unknown(f"dn{number}", "why")

        assert "1,000 datanodes call and are refused" in served.said()
