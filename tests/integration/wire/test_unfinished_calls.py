"""Calls that are begun and never finished, or never read: they stop neither server."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from threading import Event

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agent.observe.healthz import health
from agent.services.limits import DatanodeServerLimits
from scm.api.server import ScmServerLimits as ScmLimits
from scm.api.server import build_server
from scm.api.service import ScmService
from suture.runtime.call_thread_pool import LATE_S, CallThreadPool
from suture.wire.server.blocked_calls import BlockedCalls
from suture.wire.server.server_options import PATIENCE
from suture.wire.v1 import container_pb2, datanode_pb2
from tests.support.clock import FakeClock
from tests.support.control.scm_world import ScmWorld
from tests.support.faults.raw_http2 import RawHttp2
from tests.support.storage.datanodes import Datanode
from tests.support.storage.stored_replica import CONTAINER
from tests.support.waiting import wait_until

SLOW_S = 0.5
SLOTS = 4
CALLS_MAX = 32
PATIENT = replace(PATIENCE, slow_s=SLOW_S)
READ = "/suture.v1.Datanode/ReadChunk"
METHODS = {
    "unary": "/suture.v1.{service}/Register",
    "unknown": "/suture.v1.{service}/NoSuchMethod",
    "health": "/grpc.health.v1.Health/Check",
    "upload": "/suture.v1.Datanode/ImportContainer",
    "stream": READ,
}
ANSWER_S = 20.0  # an answer within it is one; the machine may be busy


class Served:
    """A server, and what it knows of calls that wait."""

    def __init__(self, service: str, address: str, waits: BlockedCalls) -> None:
        self.service = service
        self.address = address
        self.waits = waits

    def answers(self) -> bool:
        """Whether a client that tries a few times is answered."""
        with grpc.insecure_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            deadline_s = time.monotonic() + ANSWER_S
            while time.monotonic() < deadline_s:
                try:
                    answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=2.0)
                except grpc.RpcError:
                    continue  # refused or late: again, as clients do
                return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False


@contextmanager
def datanode(path: Path) -> Iterator[Served]:
    """Serve a datanode of a few threads."""
    node = Datanode("dn1", path)
    try:
        node.replica.create()
        with CallThreadPool(SLOTS, CALLS_MAX) as threads:
            node.serve(
                limits=DatanodeServerLimits(rpc_count_max=CALLS_MAX, patience=PATIENT),
                threads=threads,
            )
            assert node.built is not None
            yield Served("Datanode", node.address, node.built.waits)
            node.stop_serving()
    finally:
        node.close()


@contextmanager
def control_plane(path: Path) -> Iterator[Served]:
    """Serve a control plane of a few threads."""
    limits = ScmLimits(patience=PATIENT, rpc_count_max=CALLS_MAX)
    with ScmWorld(path).running() as world, CallThreadPool(SLOTS, CALLS_MAX) as threads:
        service = ScmService(world.control)
        built = build_server(service, "127.0.0.1:0", threads, limits=limits, slots=threads)
        built.server.start()
        try:
            yield Served("Scm", built.address, built.waits)
        finally:
            built.server.stop(0).wait()


Serve = Callable[[Path], AbstractContextManager[Served]]
both = pytest.mark.parametrize("serve", [datanode, control_plane])


def begin(address: str, method: str, count: int) -> RawHttp2:
    """Begin that many calls on one connection, and finish none; the server has them all."""
    raw = RawHttp2(address)
    raw.greet()
    for number in range(count):
        raw.begin(2 * number + 1, method)
    raw.settle()
    return raw


@both
@pytest.mark.parametrize("kind", ["unary", "health"])
def test_single_connection_cannot_take_all_threads(serve: Serve, kind: str, tmp_path: Path) -> None:
    """One connection starts 100 calls and gets a share of the threads. The other calls are
    refused before they get one, and another client is answered at once.
    """
    with serve(tmp_path) as served:
        method = METHODS[kind].format(service=served.service)
        method = method.replace("Datanode/Register", "Datanode/Status")
        raw = begin(served.address, method, 100)
        with raw:
            wait_until(lambda: len(served.waits) > 0)

            assert served.answers()
            assert len(served.waits) < CALLS_MAX
        wait_until(lambda: len(served.waits) == 0)
        assert served.answers()


@both
def test_many_connections_cannot_keep_them(serve: Serve, tmp_path: Path) -> None:
    """Thirty connections use their full share. Unfinished calls are ended, and another client is
    answered. When the connections are gone, no call waits.
    """
    with serve(tmp_path) as served:
        method = f"/suture.v1.{served.service}/" + (
            "Status" if served.service == "Datanode" else "ListNodes"
        )
        with ExitStack() as opened:
            for _ in range(30):
                opened.enter_context(begin(served.address, method, 8))

            assert served.answers()
            assert served.answers()
        wait_until(lambda: len(served.waits) == 0)
        assert served.answers()


def test_uploads_and_reads_that_stop_give_way_too(tmp_path: Path) -> None:
    """
    A replica that is announced and never sent; chunks that are asked for and never taken.
    """
    asked = datanode_pb2.ReadChunkRequest(
        block_id=container_pb2.BlockId(container_id=CONTAINER, local_id=1)
    ).SerializeToString()
    with datanode(tmp_path) as served, ExitStack() as opened:
        for _ in range(4):
            opened.enter_context(begin(served.address, METHODS["upload"], 8))
        for _ in range(4):
            raw = opened.enter_context(RawHttp2(served.address))
            raw.greet(window_bytes=0)
            for number in range(8):
                raw.begin(2 * number + 1, READ)
                raw.finish(2 * number + 1, asked)
            raw.settle()

        assert served.answers()
        assert served.answers()


def test_health_says_that_calls_find_no_thread() -> None:
    """The status is not 200 while no call is answered, and 200 again afterwards."""
    clock = FakeClock()
    serving = datanode_pb2.StatusResponse(volumes=[datanode_pb2.VolumeStatus(path="/v")])
    scrub = datanode_pb2.ScrubStatusResponse()
    with CallThreadPool(1, 4, monotonic_s=clock.monotonic_s) as threads:
        threads.acquire()
        found = Event()
        threads.submit(threads.acquire).add_done_callback(lambda _: found.set())
        wait_until(lambda: threads.waiting_count == 1)
        clock.advance_s(LATE_S - 0.1)
        early = health(serving, scrub, threads.trouble)[0]
        clock.advance_s(0.1)
        late, document = health(serving, scrub, threads.trouble)
        threads.release()
        assert found.wait(ANSWER_S)

        assert HTTPStatus.OK == early
        assert HTTPStatus.SERVICE_UNAVAILABLE == late
        assert "1 calls wait for a thread, the first for 5 s" in str(document["problems"])
        assert (HTTPStatus.OK, "") == (health(serving, scrub, threads.trouble)[0], threads.trouble)
