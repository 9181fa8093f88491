"""Single small puts: what each costs, and many at once in a cluster with little room."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier
from typing import Any

import grpc
import pytest

from suture import Client, KeyExists
from tests.support.forked_cluster import forked_cluster
from tools.demo.cluster import Cluster

DATA = bytes(8192)
CONTAINER_BYTES = 5 * 1024**3


class CountedCalls(
    grpc.UnaryUnaryClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
):
    """Counts the calls of the channels that it is put on."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def intercept_unary_unary(self, proceed: Callable[..., Any], details: Any, request: Any) -> Any:
        self.counts[details.method.rpartition("/")[2]] += 1
        return proceed(details, request)

    def intercept_stream_unary(
        self, proceed: Callable[..., Any], details: Any, requests: Any
    ) -> Any:
        return self.intercept_unary_unary(proceed, details, requests)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The calls of clients that are opened from now on."""
    counted, dial = CountedCalls(), grpc.insecure_channel
    monkeypatch.setattr(
        grpc,
        "insecure_channel",
        lambda *arguments: grpc.intercept_channel(dial(*arguments), counted),
    )
    return counted.counts


def test_put_after_the_first_one_takes_five_calls(cluster: Cluster, calls: Counter[str]) -> None:
    """Its session and container are kept, so four calls of nine are saved. The client ends the
    session when it closes.
    """
    with Client(cluster.scm.address) as client:
        client.put("calls/first", DATA, replace=True)
        first = +calls
        calls.clear()
        client.put("calls/second", DATA, replace=True)
        second = +calls
        calls.clear()

    assert {"AllocateBlocks": 1, "CreateContainer": 3, "WriteBlocks": 3, "CommitKey": 1} == first
    assert {"AllocateBlocks": 1, "WriteBlocks": 3, "CommitKey": 1} == second
    assert {"EndWriteSession": 1} == calls


def test_puts_of_many_threads_share_calls(cluster: Cluster, calls: Counter[str]) -> None:
    """Each key is readable, and one that exists fails its own put."""
    keys, together = [f"shared/{number}" for number in range(32)], Barrier(16)
    with Client(cluster.scm.address) as client:
        client.put("shared/taken", b"old", replace=True)
        calls.clear()

        def put(key: str) -> str:
            if key in keys[:16]:
                together.wait(10)
            try:
                return client.put(key, key.encode()).key
            except KeyExists:
                return "exists"

        with ThreadPoolExecutor(16) as threads:
            found = list(threads.map(put, [*keys, "shared/taken"]))
        commits = calls["CommitKey"]
        read = [client.get(key).decode() for key in keys]

    assert [*keys, "exists"] == found
    assert keys == read
    assert b"old" == read_by_another(cluster, "shared/taken")
    assert commits < 32


def read_by_another(cluster: Cluster, key: str) -> bytes:
    """Return the contents of a key, read by a client of its own."""
    with Client(cluster.scm.address) as client:
        return client.get(key)


@pytest.fixture(scope="module")
def roomless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with containers of the default size, a few of which have room."""
    path = tmp_path_factory.mktemp("roomless")
    with forked_cluster(path, container_bytes_max=CONTAINER_BYTES) as running:
        yield running


@pytest.mark.parametrize("replication", ["", "xor-2-1-16k"])
def test_many_clients_store_with_room_for_few_containers(
    roomless: Cluster, replication: str
) -> None:
    """Each of them keeps a session; none of them fails for lack of room."""
    fits_count = shutil.disk_usage(roomless.root).free // CONTAINER_BYTES
    client_count = min(64, 2 * fits_count + 4)
    with ExitStack() as stack, ThreadPoolExecutor(client_count) as threads:
        clients = [stack.enter_context(Client(roomless.scm.address)) for _ in range(client_count)]

        def put(number: int) -> int:
            key = f"little{replication}/{number}"
            return clients[number].put(key, DATA, replication=replication).replicas_min

        stored = list(threads.map(put, range(client_count)))

    assert [3] * client_count == stored
