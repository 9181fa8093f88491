"""Parity in the background: what is verified, when, by whom, how fast, and what is told of it."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent.scan.parity_scrub import ParityPolicy, ParityScrub
from agent.services.admin_handlers import AdminHandlers
from agent.services.limits import DatanodeServerLimits
from agent.services.server import build_server
from merkle.replica import BlockId, ContainerId
from suture.ec.scheme import CodecName, Scheme
from suture.errors import Code, UnavailableError
from suture.runtime.loop import Busy, ProgressMarker, RetryAfter
from suture.wire.clients.peer import Peer
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.clock import FakeClock
from tests.support.storage.ec_cluster import CONTAINER, EcCluster, altered, ec_cluster, groups_of

RS_3_2 = Scheme(CodecName.RS, 3, 2, 4096)
LENGTHS = (1, 50_000)
STRIPES = 1 + 5
INTERVAL_S = 3600.0


class Bench:
    """The worker of one datanode of a cluster, with everything around it at hand."""

    def __init__(self, cluster: EcCluster, *, node: int = 1) -> None:
        self.cluster = cluster
        self.clock = FakeClock()
        self.stop = threading.Event()
        self.is_held = False
        self.is_away = False  # the control plane
        self.paced: list[int] = []
        self.asked: list[int] = []
        self.on_pace: Callable[[], None] = lambda: None
        self.worker = ParityScrub(
            cluster.nodes[node].store,
            cluster.nodes[node].datanode_id,
            ParityPolicy(INTERVAL_S),
            info=self._info,
            dial=cluster.peer,
            pace=self._pace,
            is_held=lambda: self.is_held,
            stop=self.stop,
            clock=self.clock,
            pulse=ProgressMarker(self.clock),
        )

    def _pace(self, length_bytes: int) -> None:
        self.paced.append(length_bytes)
        self.on_pace()

    def _info(self, container_id: ContainerId) -> scm_pb2.ContainerInfo:
        self.asked.append(container_id)
        if self.is_away:
            raise UnavailableError(Code.UNAVAILABLE, "no control plane")
        return scm_pb2.ContainerInfo(
            container_id=container_id,
            scheme=str(RS_3_2),
            replicas=[
                scm_pb2.ContainerInfoReplica(
                    datanode=container_pb2.DatanodeEndpoint(
                        datanode_id=node.datanode_id, address=node.address
                    ),
                    node_health="HEALTHY",
                    replica=container_pb2.ReplicaReport(
                        container_id=container_id,
                        state=container_pb2.CLOSED,
                        replica_index=index,
                    ),
                )
                for index, node in self.cluster.nodes.items()
                if index in RS_3_2.indexes
            ],
        )


def wrong_shard() -> dict[int, dict[int, object]]:
    """Shard 3 of block 2, with wrong bytes in its second stripe and checksums that fit them."""
    groups = groups_of(RS_3_2, LENGTHS)
    return {3: {**groups, 2: altered(groups[2], 1, 3)}}


def test_every_stripe_is_read_once_in_the_interval(tmp_path: Path) -> None:
    """
    A container is verified, then waits for its interval, and is verified again.
    """
    with ec_cluster(tmp_path, RS_3_2, LENGTHS, spare=0) as cluster:
        cluster.serve()
        bench = Bench(cluster)

        first, early = bench.worker.step(), bench.worker.step()
        bench.clock.advance_s(INTERVAL_S)
        again = bench.worker.step()

        assert (Busy(), Busy()) == (first, again)
        assert isinstance(early, RetryAfter)
        status = bench.worker.status()
        assert (1, 2 * STRIPES, 0) == (
            status.verified_count,
            status.stripe_count,
            status.fault_count,
        )
        assert sum(bench.paced) == status.read_bytes
        bench.worker.close()


def test_container_that_is_verified_now_is_named(tmp_path: Path) -> None:
    """The status that is asked for in between has its id, and the one afterwards has none."""
    with (
        ec_cluster(tmp_path, RS_3_2, LENGTHS, spare=0) as cluster,
        ThreadPoolExecutor(2) as executor,
    ):
        cluster.serve()
        bench = Bench(cluster)
        scrub = SimpleNamespace(
            status=lambda **_: datanode_pb2.ScrubStatusResponse(parity=bench.worker.status())
        )
        built = build_server(
            [AdminHandlers(datanode_pb2.StatusResponse, scrub)],  # type: ignore[arg-type]
            "127.0.0.1:0",
            executor,
            datanode_id="dn1",
            limits=DatanodeServerLimits(),
        )
        built.server.start()
        told: list[int] = []
        with Peer(f"127.0.0.1:{built.port}") as peer:

            def ask() -> None:
                status = peer.stub.ScrubStatus(datanode_pb2.ScrubStatusRequest())
                told.append(status.parity.container_id)

            bench.on_pace = ask
            bench.worker.step()
            ask()
        built.server.stop(0).wait()
        bench.worker.close()

    assert ({CONTAINER}, 0) == (set(told[:-1]), told[-1])


def test_a_wrong_shard_is_named_until_it_is_right(tmp_path: Path) -> None:
    """The status has container, block, stripe and shard. A later clean verification clears it."""
    with ec_cluster(tmp_path, RS_3_2, LENGTHS, spare=0, instead=wrong_shard()) as cluster:
        cluster.serve()
        bench = Bench(cluster)

        bench.worker.step()
        [told] = bench.worker.status().faults
        cluster.nodes[3].store.delete_container(CONTAINER, force=True)
        bench.clock.advance_s(INTERVAL_S)
        bench.worker.step()

        assert (CONTAINER, 2, 1, [3]) == (
            told.container_id,
            told.local_id,
            told.stripe,
            list(told.wrong_shards),
        )
        assert 0 == bench.worker.status().fault_count
        bench.worker.close()


def test_holder_with_the_lowest_shard_verifies_parity(tmp_path: Path) -> None:
    """Another holder asks and leaves it alone."""
    with ec_cluster(tmp_path, RS_3_2, LENGTHS, spare=0) as cluster:
        cluster.serve()
        bench = Bench(cluster, node=2)

        bench.worker.step()

        assert [CONTAINER] == bench.asked
        assert [] == bench.paced
        bench.worker.close()


def test_held_scans_hold_the_parity_scrub(tmp_path: Path) -> None:
    """A pause or a closed window holds it before it begins and between two stripes."""
    with ec_cluster(tmp_path, RS_3_2, LENGTHS, spare=0) as cluster:
        cluster.serve()
        bench = Bench(cluster)
        bench.is_held = True

        held = bench.worker.step()
        bench.is_held = False
        has_read = threading.Event()

        def hold() -> None:
            bench.is_held = True
            has_read.set()

        bench.on_pace = hold
        step = threading.Thread(target=bench.worker.step)
        step.start()
        has_read.wait()
        step.join(0.2)
        was_waiting = step.is_alive()
        bench.stop.set()
        step.join()

        assert isinstance(held, RetryAfter)
        assert (True, 1) == (was_waiting, len(bench.paced))
        bench.worker.close()


def test_the_stop_ends_it_between_two_stripes(tmp_path: Path) -> None:
    """
    The agent's stop is not waited for by a container of gigabytes, and is no error.
    """
    with ec_cluster(tmp_path, RS_3_2, LENGTHS, spare=0) as cluster:
        cluster.serve()
        bench = Bench(cluster)
        bench.on_pace = bench.stop.set

        step = bench.worker.step()

        assert isinstance(step, RetryAfter)
        assert 1 == len(bench.paced)
        assert 0 == bench.worker.status().verified_count
        bench.worker.close()


def test_a_container_that_could_not_be_verified_is_tried_again_soon(tmp_path: Path) -> None:
    """
    The control plane cannot be asked who has the shards: the next try is long before the interval.
    """
    with ec_cluster(tmp_path, RS_3_2, LENGTHS, spare=0) as cluster:
        cluster.serve()
        bench = Bench(cluster)
        bench.is_away = True

        bench.worker.step()
        waiting = bench.worker.step()
        bench.is_away = False
        bench.clock.advance_s(INTERVAL_S / 10)
        bench.worker.step()

        assert isinstance(waiting, RetryAfter)
        assert 1 == bench.worker.status().verified_count
        bench.worker.close()


def test_a_stripe_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    """One stripe has too few verified cells. It is reported as unread, and all others are
    verified.
    """
    with ec_cluster(tmp_path, RS_3_2, LENGTHS, spare=0) as cluster:
        for index in (1, 2, 4):
            path = cluster.nodes[index].store.paths(CONTAINER).block_file(BlockId(2))
            data = bytearray(path.read_bytes())
            data[4096] ^= 1
            path.write_bytes(data)
        cluster.serve()

        report = cluster.verify_parity()

        assert ((2, 1),) == report.unread
        assert (STRIPES, ()) == (report.stripe_count, report.faults)
        assert not report.is_clean


@pytest.mark.parametrize("down", [(1, 2, 3)])
def test_too_few_shards_are_refused(tmp_path: Path, down: tuple[int, ...]) -> None:
    """With fewer shards than data shards no stripe can be verified."""
    with ec_cluster(tmp_path, RS_3_2, LENGTHS, spare=0) as cluster:
        cluster.serve()
        for index in down:
            cluster.nodes[index].stop_serving()

        with pytest.raises(UnavailableError, match="2 of the 3 sources"):
            cluster.verify_parity()
