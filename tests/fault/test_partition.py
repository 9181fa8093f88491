"""Lines that break or stall in the middle of a command: it succeeds, or fails cleanly, or is late.

After each fault nothing half may be seen at the target, no room may be kept, and in the end no
thread, descriptor or file is left over. SUTURE_PARTITION_REPEATS says how often (60).
"""

import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.errors import SutureError
from agent.rpc.peer import Peer, Timeouts
from tests.support.bad_line import BadLine
from tests.support.datanodes import Datanode
from tests.support.stored_replica import CONTAINER

pytestmark = [pytest.mark.fault, pytest.mark.slow]

REPEATS = int(os.environ.get("SUTURE_PARTITION_REPEATS", "60"))
SEED = 20261121
BLOCKS = 2
STALL_S = 0.3
QUICK = Timeouts(call_s=2.0, tree_s=2.0, chunk_s=2.0)


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


def settle(condition: Callable[[], bool], wait_s: float = 20.0) -> bool:
    """Wait until something is so; what runs elsewhere may take a moment to end."""
    done = threading.Event()
    for _ in range(int(wait_s / 0.02)):
        if condition():
            return True
        done.wait(0.02)
    return condition()


def has_ended(target: Datanode) -> bool:
    """Whether nothing is arriving at the target, and what is in its place is served."""
    store = target.replica.store
    layout = store._volumes[0].layout
    return (
        [] == list(layout.importing.iterdir())
        and len(store.replica_ids()) == len(list(layout.current.glob("*/*")))
        and 0 == store._arrivals.reserved_bytes(store._volumes[0])
    )


def test_copies_over_a_bad_line(datanodes: tuple[Datanode, Datanode]) -> None:
    """
    However a copy is cut off, the target has nothing of it, or all of it when only the answer was
    lost; when the line holds, the copy succeeds.
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
                        CONTAINER, peer, compress=False, stop=lambda: False
                    )
                    copies += 1
                except SutureError:
                    faults += 1
            line.cut()
            assert settle(lambda: has_ended(target))
            if target.replica.store.replica_ids():
                assert source.files() == target.files()
                target.replica.store.delete_container(CONTAINER, force=True)
            assert 0 == source.replica.leases.held_count()
            assert not source.replica.leases.is_shared(CONTAINER)

    assert faults > REPEATS / 4
    assert copies > 0
    allowed = (before[0] + 24, before[1] + 24)  # pools fill up to their size, once
    assert settle(lambda: all(now <= most for now, most in zip(left_over(), allowed, strict=True)))


def test_reconciles_over_a_bad_line(datanodes: tuple[Datanode, Datanode]) -> None:
    """
    A reconcile whose peer is cut off ends with an outcome, and makes nothing worse.
    """
    source, target = datanodes
    chosen = random.Random(SEED)
    source.replicate(target)
    whole = source.files()
    with BadLine(source.address) as line:
        for number in range(max(4, REPEATS // 10)):
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
            assert 0 == target.replica.leases.held_count()
