"""The control plane over real gRPC on loopback, with small real clients as datanodes."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

import grpc
import pyarrow.parquet as pq
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from scm.api.calls.control import ControlPlane
from scm.api.server import build_server
from scm.api.service import ScmService
from scm.state.clock import ScmClock
from scm.state.database import StateDatabase
from scm.state.options import ScmOptions
from suture.errors import Code, RefusedError, SutureError
from suture.wire.mapping.errors import error_from
from suture.wire.mapping.rpc_services import SCM, Stub
from suture.wire.v1 import container_pb2, scm_pb2
from tests.support.control.fake_datanode import FakeDatanode, report

OPTIONS = ScmOptions(
    container_bytes_max=1024**2, stale_after_ms=60_000, dead_after_ms=120_000, close_retry_ms=20
)
NAMES = ("dn1", "dn2", "dn3", "dn4")
CLOSED, QUASI_CLOSED = container_pb2.CLOSED, container_pb2.QUASI_CLOSED


class Cluster:
    """A served control plane, a client's stub, and four datanodes that joined."""

    def __init__(self, address: str, control: ControlPlane, channel: grpc.Channel) -> None:
        self.address = address
        self.control = control
        self.channel = channel
        self.scm = Stub(channel, SCM)
        self.nodes = {
            name: FakeDatanode(self.scm, name, rack=f"/rack-{i % 2}", address=f"{name}:1")
            for i, name in enumerate(NAMES)
        }
        for node in self.nodes.values():
            node.register()

    def write(self, name: str, *sizes: int, left_behind: int | None = None) -> int:
        """Write a key as a client does; return its container.

        With `left_behind`, that member of the pipeline misses the last block.
        """
        blocks = self.scm.AllocateBlocks(
            scm_pb2.AllocateBlocksRequest(client_id="client", sizes=sizes)
        ).blocks
        container_id: int = blocks[0].block_id.container_id
        failed = []
        for i, endpoint in enumerate(blocks[0].replicas):
            is_behind = i == left_behind
            if is_behind:
                failed.append(
                    scm_pb2.FailedReplica(
                        container_id=container_id, datanode_id=endpoint.datanode_id
                    )
                )
            self.nodes[endpoint.datanode_id].report_some(
                report(
                    container_id,
                    bcsid=blocks[-1].block_id.bcsid - is_behind,
                    block_count=len(blocks) - is_behind,
                )
            )
        locations = [
            scm_pb2.BlockLocation(block_id=block.block_id, length=size)
            for block, size in zip(blocks, sizes, strict=True)
        ]
        key = scm_pb2.KeyInfo(key=name, size=sum(sizes), blocks=locations)
        self.scm.CommitKey(scm_pb2.CommitKeyRequest(client_id="client", keys=[key], failed=failed))
        return container_id

    def finish(self) -> None:
        """End the client's session and close what it wrote."""
        self.scm.EndWriteSession(scm_pb2.EndWriteSessionRequest(client_id="client", close=True))

    def settle(self, *, root: int = 7) -> None:
        """Let every datanode fetch and obey its close commands."""
        for node in self.nodes.values():
            node.heartbeat()
            node.obey_closes(root=root)

    def info(self, container_id: int) -> scm_pb2.ContainerInfo:
        """Return what the control plane knows of a container."""
        request = scm_pb2.GetContainerInfoRequest(container_id=container_id)
        return self.scm.GetContainerInfo(request).container

    def states(self, container_id: int) -> list[str]:
        """Return the states of its replicas, sorted."""
        return sorted(
            container_pb2.ReplicaState.Name(r.replica.state)
            for r in self.info(container_id).replicas
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Serve a control plane on a free port."""
    state = StateDatabase.open(tmp_path, map_bytes=64 * 1024**2)
    clock = ScmClock()
    control = ControlPlane(
        state, clock=clock, options=OPTIONS, snapshots_path=tmp_path / "snapshots"
    )
    with ThreadPoolExecutor(8) as executor:
        built = build_server(ScmService(control), "127.0.0.1:0", executor)
        built.server.start()
        with grpc.insecure_channel(built.address) as channel:
            yield Cluster(built.address, control, channel)
        built.server.stop(0).wait()
    state.close()


def refusal(call: grpc.RpcError) -> SutureError:
    """Return the error a failed call means."""
    return error_from(call)


class TestLifeOfAContainer:
    def test_written_committed_closed_and_equal(self, cluster: Cluster) -> None:
        """The ordinary life: every replica CLOSED with the same root."""
        container_id = cluster.write("a/b", 1_000, 2_000)
        cluster.finish()
        cluster.settle()

        info = cluster.info(container_id)

        assert ("CLOSED", 2, "match") == (info.state, info.sequence_id, info.checksums)
        assert ["CLOSED"] * 3 == cluster.states(container_id)
        found = cluster.scm.LookupKey(scm_pb2.LookupKeyRequest(key="a/b"))
        assert 3_000 == found.key.size
        assert 3 == len(found.containers[0].replicas)

    def test_a_replica_left_behind_is_closed_later(self, cluster: Cluster) -> None:
        """QUASI_CLOSED with a lower bcsid, caught up, and then closed by force."""
        container_id = cluster.write("a", 1_000, 2_000, left_behind=2)
        cluster.settle()
        behind = next(
            r.datanode.datanode_id
            for r in cluster.info(container_id).replicas
            if r.replica.state == QUASI_CLOSED
        )
        first = cluster.states(container_id)
        node = cluster.nodes[behind]

        node.report_some(report(container_id, QUASI_CLOSED, bcsid=2, root=7))
        cluster.control.tick()
        node.heartbeat()
        forced = [command.close.force for command in node.commands]
        node.obey_closes(root=7)

        assert ["CLOSED", "CLOSED", "QUASI_CLOSED"] == first
        assert [True] == forced
        assert ["CLOSED"] * 3 == cluster.states(container_id)


class TestReconcile:
    def test_an_order_reaches_every_replica_and_its_outcome_comes_back(
        self, cluster: Cluster
    ) -> None:
        """From the operator's call to the operator's answer."""
        container_id = cluster.write("a", 1_000)
        cluster.finish()
        cluster.settle()
        decisions = cluster.scm.ReconcileContainers(
            scm_pb2.ReconcileContainersRequest(container_ids=[container_id, 99])
        ).decisions
        command_ids = list(decisions[0].command_ids)

        for node in cluster.nodes.values():
            node.heartbeat()
            for command in node.commands:
                assert 2 == len(command.reconcile.peers)
                assert command.reconcile.asked_for
                assert 1 == command.term
                detail = scm_pb2.ReconcileOutcome(container_id=container_id, result="converged")
                node.heartbeat(
                    statuses=(
                        scm_pb2.CommandStatus(
                            command_id=command.command_id,
                            state=scm_pb2.CommandStatus.EXECUTED,
                            type="reconcile",
                            container_id=container_id,
                            reconcile=detail,
                        ),
                    )
                )
        answer = cluster.scm.ListOutcomes(scm_pb2.ListOutcomesRequest(command_ids=command_ids))

        assert ["OK", "CONTAINER_NOT_FOUND"] == [d.code for d in decisions]
        assert set(command_ids) == {o.status.command_id for o in answer.outcomes}
        assert {"converged"} == {o.status.reconcile.result for o in answer.outcomes}
        assert [] == list(answer.pending_command_ids)

        before_id = max(command_ids)
        request = scm_pb2.ListOutcomesRequest(count=2, before_command_id=before_id)
        older = [
            outcome.status.command_id for outcome in cluster.scm.ListOutcomes(request).outcomes
        ]
        assert sorted(set(command_ids) - {before_id}, reverse=True) == older

    def test_a_plan_is_checked_against_live_state(self, cluster: Cluster) -> None:
        """The row that is true is ordered, the one that is not is named."""
        first = cluster.write("a", 1_000)
        cluster.finish()
        second = cluster.write("b", 1_000)
        cluster.finish()
        cluster.settle()
        rows = [
            scm_pb2.PlanRow(
                container_id=container_id,
                action="reconcile",
                replicas=[
                    scm_pb2.PlanReplica(datanode_id=r.datanode.datanode_id, state=CLOSED, root=root)
                    for r in cluster.info(container_id).replicas
                ],
            )
            for container_id, root in ((first, 7), (second, 8))
        ]
        request = scm_pb2.ApplyPlanRequest(snapshot_id="s", run_id="r", rows=rows)

        good, stale = cluster.scm.ApplyPlan(request).decisions

        for node in cluster.nodes.values():
            node.heartbeat()
        orders = [c.reconcile for node in cluster.nodes.values() for c in node.commands]
        assert [(first, False)] * 3 == [(order.container_id, order.asked_for) for order in orders]
        assert ("OK", 3) == (good.code, len(good.command_ids))
        assert ("STALE_PLAN", 0) == (stale.code, len(stale.command_ids))


class TestSnapshot:
    def test_reported_replicas_are_exported(self, cluster: Cluster) -> None:
        """The root is unchanged through the wire, LMDB and Parquet."""
        container_id = cluster.write("a", 1_000)
        cluster.finish()
        cluster.settle(root=2**64 - 2)

        answer = cluster.scm.ExportSnapshot(scm_pb2.ExportSnapshotRequest())

        assert (1, 3) == (answer.container_count, answer.replica_count)
        replicas = pq.read_table(Path(answer.path) / "replicas").to_pylist()
        assert {(container_id, "CLOSED", "xxh3_64", -2)} == {
            (r["container_id"], r["state"], r["tree_algorithm"], r["root"]) for r in replicas
        }


class TestErrors:
    @pytest.mark.parametrize(
        ("method", "request_message", "code", "field"),
        [
            ("Register", scm_pb2.RegisterRequest(), Code.MALFORMED_REQUEST, "datanode_id"),
            (
                "Register",
                scm_pb2.RegisterRequest(
                    datanode_id="x",
                    address="h:1",
                    boot_id=1,
                    layout_version=1,
                    cluster_id="CID-other",
                ),
                Code.WRONG_CLUSTER,
                "CID-other",
            ),
            (
                "Register",
                scm_pb2.RegisterRequest(
                    datanode_id="x", address="dn1:1", boot_id=1, layout_version=1
                ),
                Code.WRONG_DATANODE,
                "datanode dn1 uses the same address",
            ),
            ("Heartbeat", scm_pb2.HeartbeatRequest(), Code.MALFORMED_REQUEST, "datanode_id"),
            ("LookupKey", scm_pb2.LookupKeyRequest(key="no"), Code.KEY_NOT_FOUND, "no"),
            (
                "AllocateBlocks",
                scm_pb2.AllocateBlocksRequest(client_id="c", sizes=[1024**2 + 1]),
                Code.INVALID_WRITE_SIZE,
                "1048577 bytes",
            ),
            (
                "GetContainerInfo",
                scm_pb2.GetContainerInfoRequest(container_id=5),
                Code.CONTAINER_NOT_FOUND,
                "no container 5",
            ),
            (
                "ListContainerInfos",
                scm_pb2.ListContainerInfosRequest(start_container_id=2**64 - 1),
                Code.MALFORMED_REQUEST,
                "start_container_id",
            ),
        ],
    )
    def test_a_wrong_call_gets_its_code_and_its_reason(
        self, cluster: Cluster, method: str, request_message: object, code: Code, field: str
    ) -> None:
        """A wrong call gets its code and its reason, and the control plane continues."""
        with pytest.raises(grpc.RpcError) as caught:
            getattr(cluster.scm, method)(request_message)

        error = refusal(caught.value)
        assert code is error.code
        assert field in str(error)
        assert 4 == len(cluster.scm.ListNodes(scm_pb2.ListNodesRequest()).nodes)

    def test_bytes_that_are_no_message_are_refused(self, cluster: Cluster) -> None:
        """Every method, whatever comes."""
        for method in ("Register", "Heartbeat", "CommitKey", "ApplyPlan", "ListOutcomes"):
            call = cluster.channel.unary_unary(f"/suture.v1.Scm/{method}")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"\xff\xff\xff\xff")
            assert grpc.StatusCode.INVALID_ARGUMENT is caught.value.code()

    def test_a_message_too_large_is_refused(self, cluster: Cluster) -> None:
        """Its memory is never ours."""
        call = cluster.channel.unary_unary("/suture.v1.Scm/Heartbeat")

        with pytest.raises(grpc.RpcError) as caught:
            call(b"\0" * (33 * 1024**2))

        assert grpc.StatusCode.RESOURCE_EXHAUSTED is caught.value.code()
        assert 4 == len(cluster.scm.ListNodes(scm_pb2.ListNodesRequest()).nodes)

    def test_a_port_in_use_is_refused(self, cluster: Cluster) -> None:
        """Two SCMs on one port would share its calls, silently."""
        with ThreadPoolExecutor(1) as executor, pytest.raises(RefusedError) as caught:
            build_server(ScmService(cluster.control), cluster.address, executor)

        assert caught.value.code is Code.INVALID_CONFIG
        assert cluster.address in str(caught.value)


class TestViews:
    def test_containers_are_listed_in_pages(self, cluster: Cluster) -> None:
        """Every container once, in order."""
        for i in range(5):
            cluster.write(f"k{i}", 1_000)
            cluster.finish()
        shown, start = [], 0
        while True:
            page = cluster.scm.ListContainerInfos(
                scm_pb2.ListContainerInfosRequest(start_container_id=start, count=2)
            )
            shown += [c.container_id for c in page.containers]
            start = page.next_container_id
            if not start:
                break

        assert [1, 2, 3, 4, 5] == shown

    def test_nodes_show_their_health_volumes_and_queues(self, cluster: Cluster) -> None:
        """The values are those of the last heartbeat."""
        cluster.nodes["dn1"].heartbeat(queues={"reconcile": 3})

        node = cluster.scm.ListNodes(scm_pb2.ListNodesRequest()).nodes[0]

        assert ("dn1", "HEALTHY", "IN_SERVICE") == (node.datanode_id, node.health, node.op_state)
        assert [("reconcile", 3)] == [(q.type, q.count) for q in node.queues]
        assert 100 * 1024**3 == node.volumes[0].capacity_bytes

    def test_nodes_come_with_the_version_and_start_of_the_scm(self, cluster: Cluster) -> None:
        """The version is that of the installed package, and the start lies in the past minute."""
        answer = cluster.scm.ListNodes(scm_pb2.ListNodesRequest())

        assert version("suture") == answer.version
        assert 0 <= time.time() * 1000 - answer.started_at_ms < 60_000

    def test_answer_to_a_heartbeat_has_the_time_of_the_scm(self, cluster: Cluster) -> None:
        """It lies between the beginning and the end of the call, by the same clock."""
        began_ms = time.time_ns() // 1_000_000
        answer = cluster.scm.Heartbeat(scm_pb2.HeartbeatRequest(datanode_id="dn1"))
        ended_ms = time.time_ns() // 1_000_000

        assert began_ms <= answer.answered_at_ms <= ended_ms

    def test_the_health_service_says_serving(self, cluster: Cluster) -> None:
        """For systemd, for load balancers, for people."""
        stub = health_pb2_grpc.HealthStub(cluster.channel)

        answer = stub.Check(health_pb2.HealthCheckRequest(service="suture.v1.Scm"))

        assert health_pb2.HealthCheckResponse.SERVING == answer.status


class TestManyAtOnce:
    def test_concurrent_writers_get_different_blocks_and_all_keys_are_kept(
        self, cluster: Cluster
    ) -> None:
        """Eight sessions at once: no id twice, nothing lost."""

        def write(number: int) -> list[int]:
            client_id = f"client-{number}"
            local_ids = []
            for i in range(10):
                (block,) = cluster.scm.AllocateBlocks(
                    scm_pb2.AllocateBlocksRequest(client_id=client_id, sizes=[100])
                ).blocks
                location = scm_pb2.BlockLocation(block_id=block.block_id, length=100)
                key = scm_pb2.KeyInfo(key=f"{number}/{i}", size=100, blocks=[location])
                cluster.scm.CommitKey(scm_pb2.CommitKeyRequest(client_id=client_id, keys=[key]))
                local_ids.append(block.block_id.local_id)
            return local_ids

        with ThreadPoolExecutor(8) as pool:
            ids = [local_id for made in pool.map(write, range(8)) for local_id in made]
        keys = cluster.scm.ListKeys(scm_pb2.ListKeysRequest()).keys

        assert 80 == len(set(ids))
        assert 80 == len(keys)


def test_a_heartbeat_that_comes_too_late_changes_nothing(cluster: Cluster) -> None:
    """A heartbeat whose datanode timed out may be older than a later one that was processed."""
    node = cluster.nodes["dn1"]
    node.report_full(report(1), report(2))
    late = scm_pb2.HeartbeatRequest(
        datanode_id="dn1",
        boot_id=node.boot_id,
        reports=[scm_pb2.ContainerReport(full=True, report_id=2, last=True, replicas=[report(1)])],
    )

    with cluster.control.access.lock:  # something slow goes on
        with pytest.raises(grpc.RpcError) as caught:
            cluster.scm.Heartbeat(late, timeout=0.3)
        # Its end goes over the same connection before this call, so it is heard before it.
        health_pb2_grpc.HealthStub(cluster.channel).Check(
            health_pb2.HealthCheckRequest(service="suture.v1.Scm")
        )
    for _ in range(10):  # what waited for the lock before these has had its turn
        node.heartbeat()

    assert grpc.StatusCode.DEADLINE_EXCEEDED is caught.value.code()
    assert {1, 2} == set(cluster.control.state.replicas.on("dn1"))
