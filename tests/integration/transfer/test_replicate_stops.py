"""A copy that is stopped, by a shutdown or its deadline: nothing of it stays; another succeeds."""

import itertools
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from suture.errors import Code, RefusedError, SutureError, UnavailableError
from suture.wire.clients.peer import Peer
from suture.wire.v1 import scm_pb2
from tests.support.storage.datanodes import QUICK, Datanode
from tests.support.storage.stored_replica import CONTAINER

BLOCKS = 12
WAIT_S = 20.0
LOOK_S = 0.02


@pytest.fixture
def datanodes(tmp_path: Path) -> Iterator[tuple[Datanode, Datanode]]:
    """A source with a replica, and a target that serves."""
    source, target = Datanode("dn-a", tmp_path / "a"), Datanode("dn-b", tmp_path / "b")
    source.replica.create(blocks=BLOCKS)
    target.serve()
    yield source, target
    source.close()
    target.close()


def is_untouched(target: Datanode) -> bool:
    """Wait until the target has given up what was arriving; return whether nothing is left."""
    store = target.replica.store
    layout = store.volume_set.working[0].layout
    for _ in range(int(WAIT_S / LOOK_S)):
        if not list(layout.importing.iterdir()) and not store.volume_set.arrivals.reserved_bytes(
            store.volume_set.working[0]
        ):
            return not store.replica_ids()
        Event().wait(LOOK_S)
    return False


def copied(source: Datanode, target: Datanode) -> scm_pb2.ReplicateOutcome:
    """Copy, again while the target is busy: gRPC may begin a call there only after its caller has
    gone, when the target looked untouched already."""
    for _ in range(int(WAIT_S / LOOK_S)):
        try:
            return source.replicate(target)
        except UnavailableError as answer:
            if answer.code is not Code.BUSY:
                raise
        Event().wait(LOOK_S)
    return source.replicate(target)


def test_copy_of_a_missing_replica_opens_no_connection(tmp_path: Path) -> None:
    """Many commands to copy replicas that are gone do not open a connection each."""
    source = Datanode("dn-a", tmp_path / "a")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with Peer(address, timeouts=QUICK) as nobody, pytest.raises(RefusedError) as refused:
            source.replicator().replicate(CONTAINER, nobody, stop=lambda: False)
        ready, _, _ = select.select([listener], [], [], 0)
    source.close()

    assert Code.CONTAINER_NOT_FOUND is refused.value.code
    assert [] == ready, "somebody connected"


@pytest.mark.parametrize("asked_max", [0, 1, 2, 5, 9])
def test_a_copy_that_is_stopped_leaves_nothing(
    datanodes: tuple[Datanode, Datanode], asked_max: int
) -> None:
    """
    Before it begins, or between any two of its parts; the source may be changed again at once.
    """
    source, target = datanodes
    asked = itertools.count()

    with pytest.raises(SutureError) as stopped:
        source.replicate(target, stop=lambda: next(asked) >= asked_max)

    assert Code.CANCELLED is stopped.value.code
    assert is_untouched(target)
    assert not source.replica.leases.is_shared(CONTAINER)
    assert "imported" == copied(source, target).result
    assert source.files() == target.files()


def test_a_copy_whose_time_is_over_leaves_nothing(datanodes: tuple[Datanode, Datanode]) -> None:
    """
    The deadline of its command is that of the call.
    """
    source, target = datanodes
    with Peer(target.address, timeouts=QUICK) as peer, pytest.raises(SutureError) as late:
        source.replicator().replicate(CONTAINER, peer, stop=lambda: False, timeout_s=0.0)

    assert Code.UNAVAILABLE is late.value.code
    assert is_untouched(target)
    assert not source.replica.leases.is_shared(CONTAINER)
    assert "imported" == copied(source, target).result
