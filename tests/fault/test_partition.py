"""Lines that break or stall in the middle of a command: it succeeds, or fails cleanly, or is late.

After each fault nothing half may be seen at the target, no room may be kept, and in the end no
thread, descriptor or file is left over. SUTURE_PARTITION_REPEATS says how often (60; a tenth of it
for what takes longer, unless it is given).
"""

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.reconstruct.coordinator import ReconstructionCoordinator
from merkle.replica import ReplicaState
from suture.ec.rebuild_task import RebuildTask, ShardLocation
from suture.ec.scheme import CodecName, Scheme
from suture.errors import SutureError
from suture.runtime.clock import SystemClock
from suture.wire.clients.block_peer import PeerTimeouts
from suture.wire.clients.peer import Peer
from tests.support.faults.bad_line import BadLine
from tests.support.leases import is_held
from tests.support.storage.datanodes import Datanode
from tests.support.storage.ec_cluster import CONTAINER as EC_CONTAINER
from tests.support.storage.ec_cluster import EcCluster, ec_cluster
from tests.support.storage.stored_replica import CONTAINER

pytestmark = [pytest.mark.fault, pytest.mark.slow]

REPEATS = int(os.environ.get("SUTURE_PARTITION_REPEATS", "60"))
FEWER_REPEATS = REPEATS if "SUTURE_PARTITION_REPEATS" in os.environ else REPEATS // 10
SEED = 20261121
POOLS = 24  # threads and descriptors of pools that fill up to their size, once
BLOCKS = 2
SCHEME = Scheme(CodecName.RS, 2, 1, 4096)
LENGTHS = (1, 3 * 8192 + 100, 8192)
GIVE_UP_S = 0.5  # without a write, a run that was cut off is taken for dead
LOST, SPARE = 3, 4  # the shard that is lost, and the datanode that gets it
STALL_S = 0.3
QUICK = PeerTimeouts(call_s=2.0, tree_s=2.0, chunk_s=2.0)


@pytest.fixture
def datanodes(tmp_path: Path) -> Iterator[tuple[Datanode, Datanode]]:
    """A source with a replica, and a target that serves."""
    source, target = Datanode("dn-a", tmp_path / "a"), Datanode("dn-b", tmp_path / "b")
    source.replica.create(blocks=BLOCKS)
    source.serve()
    target.serve()
    yield source, target
    source.close()
    target.close()


def left_over() -> tuple[int, int]:
    """Return the threads and descriptors of this process."""
    return threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def is_no_more(before: tuple[int, int]) -> bool:
    """Whether there are no more threads and descriptors than before, but for the pools'."""
    return all(now <= then + POOLS for now, then in zip(left_over(), before, strict=True))


def settle(condition: Callable[[], bool], wait_s: float = 20.0) -> bool:
    """Wait until something is so; what runs elsewhere may take a moment to end."""
    done = threading.Event()
    for _ in range(int(wait_s / 0.02)):
        if condition():
            return True
        done.wait(0.02)
    return condition()


def has_ended(target: Datanode, line: BadLine) -> bool:
    """Cut the line, and what was dialled while it was cut before; return whether nothing is
    arriving at the target, and what is in its place is served."""
    line.cut()
    store = target.replica.store
    layout = store.volume_set.working[0].layout
    return (
        [] == list(layout.importing.iterdir())
        and len(store.replica_ids()) == len(list(layout.current.glob("*/*")))
        and 0 == store.volume_set.arrivals.reserved_bytes(store.volume_set.working[0])
    )


def left_at(target: Datanode) -> str:
    """Say what a copy has left."""
    store = target.replica.store
    layout = store.volume_set.working[0].layout
    return (
        f"arriving: {list(layout.importing.iterdir())}, served: {store.replica_ids()}, "
        f"there: {list(layout.current.glob('*/*'))}, "
        f"reserved: {store.volume_set.arrivals.reserved_bytes(store.volume_set.working[0])}"
    )


def test_copies_over_a_bad_line(datanodes: tuple[Datanode, Datanode]) -> None:
    """A copy that is cut off leaves nothing on the target, or the whole replica if only the
    answer was lost. The copy succeeds once the connection holds.
    """
    source, target = datanodes
    chosen = random.Random(SEED)
    size_bytes = sum(len(data) for data in source.files().values())
    faults = copies = 0
    before = left_over()
    with BadLine(target.address) as line:
        for number in range(REPEATS):
            most = chosen.randrange(0, int(size_bytes * 1.3))
            line.breaks_after(most, stalls=number % 4 == 0)
            with Peer(line.address, timeouts=QUICK) as peer:
                try:
                    source.replicator(stall_s=STALL_S, finish_s=STALL_S).replicate(
                        CONTAINER, peer, stop=lambda: False
                    )
                    copies += 1
                except SutureError:
                    faults += 1
            assert settle(lambda: has_ended(target, line)), left_at(target)
            if target.replica.store.replica_ids():
                assert source.files() == target.files()
                target.replica.store.delete_container(CONTAINER, force=True)
            assert not is_held(source.replica.leases, CONTAINER)
            assert not source.replica.leases.is_shared(CONTAINER)

    assert faults > REPEATS / 4
    assert copies > 0
    assert settle(lambda: is_no_more(before))


def test_reconciles_over_a_bad_line(datanodes: tuple[Datanode, Datanode]) -> None:
    """
    A reconcile whose peer is cut off ends with an outcome, and makes nothing worse.
    """
    source, target = datanodes
    chosen = random.Random(SEED)
    source.replicate(target)
    whole = source.files()
    before = left_over()
    with BadLine(source.address) as line:
        for number in range(FEWER_REPEATS):
            target.replica.flip(1, 100)
            target.scan()
            line.breaks_after(chosen.randrange(100, 3_000), stalls=number % 2 == 0)
            with Peer(line.address, timeouts=QUICK) as peer:
                target.reconciler().reconcile(CONTAINER, {"dn-a": peer}, stop=lambda: False)
            line.cut()
            assert whole["2.block"] == target.files()["2.block"]
            line.breaks_after(-1, stalls=False)
            with Peer(line.address, timeouts=QUICK) as peer:
                result = target.reconciler().reconcile(
                    CONTAINER, {"dn-a": peer}, stop=lambda: False
                )
            assert result.result.value in {"converged", "nothing_to_do"}
            assert whole == target.files()
            assert not is_held(target.replica.leases, CONTAINER)

    assert settle(lambda: is_no_more(before))


def test_reconstructions_over_a_bad_line(tmp_path: Path) -> None:
    """A source or the target is cut off. An order after the deadline makes the shard whole."""
    chosen = random.Random(SEED)
    failed = 0
    with ec_cluster(tmp_path, SCHEME, LENGTHS) as cluster:
        cluster.serve()
        order = cluster.order([LOST])
        target = cluster.nodes[SPARE]
        target.recoveries.timeout_s = GIVE_UP_S
        cluster.reconstruct(order)
        before = left_over()
        lines = {
            address: BadLine(address) for address in (cluster.nodes[1].address, target.address)
        }
        for number in range(FEWER_REPEATS):
            target.store.delete_container(EC_CONTAINER, force=True)
            victim = list(lines)[number % 2]
            lines[victim].breaks_after(chosen.randrange(200, 40_000), stalls=number % 4 == 0)
            failed += not reconstructed(cluster, order, lines)
            for line in lines.values():
                line.cut()
                line.breaks_after(-1, stalls=False)
            assert settle(lambda: reconstructed(cluster, order, lines) or is_closed(target))
            cluster.assert_shard(SPARE, LOST)
            assert not is_held(target.replica.leases, EC_CONTAINER)
        for line in lines.values():
            line.__exit__(None, None, None)

        assert failed > 0, "no line was cut in time"
        assert settle(lambda: is_no_more(before))


def reconstructed(cluster: EcCluster, order: RebuildTask, lines: dict[str, BadLine]) -> bool:
    """Carry out an order over these lines, where there is one; return whether it succeeded."""
    peers: dict[str, Peer] = {}

    def dial(shard: ShardLocation) -> Peer:
        line = lines.get(shard.address)
        where = shard.address if line is None else line.address
        peer = Peer(where, datanode_id=shard.datanode_id, timeouts=QUICK)
        return peers.setdefault(shard.address, peer)

    try:
        ReconstructionCoordinator(
            cluster.executor, dial, now_ms=SystemClock().now_ms, slow_s=STALL_S
        ).reconstruct(order, stop=lambda: False)
    except SutureError:
        return False
    finally:
        for peer in peers.values():
            peer.close()
    return True


def is_closed(target: Datanode) -> bool:
    """Whether the shard is there and closed, so that there is nothing to do."""
    store = target.replica.store
    return bool(store.replica_ids()) and store.replica(EC_CONTAINER).state is ReplicaState.CLOSED
