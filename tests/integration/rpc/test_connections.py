"""Connections of one peer keep nobody else from a server, over real sockets."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from threading import Event

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, generate_latest

from agent.rpc.datanode.limits import Limits
from agent.rpc.serving.connections import GRACE_S, Connections
from agent.runtime.callthreads import CallThreads
from agent.runtime.loop import Loop
from scm.edge.server import Limits as ScmLimits
from scm.edge.server import build_server
from scm.edge.service import ScmService
from scm.state.clock import Clock
from tests.support.control.scm_world import ScmWorld
from tests.support.faults.raw_http2 import RawHttp2, Type
from tests.support.heard import logged
from tests.support.storage.datanodes import Datanode

COUNT_MAX = 40
SHARE = COUNT_MAX // 4
ANSWER_S = 20.0
Serve = Callable[[Path], AbstractContextManager[tuple[str, Connections]]]


@contextmanager
def datanode(path: Path) -> Iterator[tuple[str, Connections]]:
    """Serve a datanode of few connections."""
    node = Datanode("dn1", path)
    try:
        with CallThreads(4, 32) as threads:
            node.serve(limits=Limits(connections_max=COUNT_MAX), threads=threads)
            assert node.built is not None
            yield node.address, node.built.connections
            node.stop_serving()
    finally:
        node.close()


@contextmanager
def control_plane(path: Path) -> Iterator[tuple[str, Connections]]:
    """Serve a control plane of few connections."""
    limits = ScmLimits(connections_max=COUNT_MAX)
    with ScmWorld(path).running() as world, ThreadPoolExecutor(4) as threads:
        service = ScmService(world.control, clock=Clock(), options=world.options)
        built = build_server(service, "127.0.0.1:0", threads, limits=limits)
        built.server.start()
        try:
            yield built.address, built.connections
        finally:
            built.server.stop(0).wait()


both = pytest.mark.parametrize("serve", [datanode, control_plane])


@contextmanager
def watched(connections: Connections) -> Iterator[None]:
    """Have the worker run."""
    loop = Loop(connections)
    loop.start()
    try:
        yield
    finally:
        loop.request_stop()
        assert loop.join(10.0)


def opened(address: str, count: int, stack: ExitStack) -> list[RawHttp2]:
    """Open connections that greet, and then do nothing."""
    made = []
    for _ in range(count):
        raw = stack.enter_context(RawHttp2(address))
        raw.greet()
        made.append(raw)
    return made


def is_answered(address: str) -> bool:
    """Whether a client that tries for a while is answered on a new connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options=options) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=ANSWER_S, wait_for_ready=True
        )
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@both
def test_idle_connections_of_one_peer_lock_nobody_out(serve: Serve, tmp_path: Path) -> None:
    """
    All places are taken, and nothing is done with them: those beyond a quarter are ended, an
    event and a metric say so, and whoever comes next is answered.
    """
    with serve(tmp_path) as (address, connections), ExitStack() as stack:
        opened(address, COUNT_MAX, stack)
        with logged() as events, watched(connections):
            assert is_answered(address)
            Event().wait(2 * GRACE_S)

        ended = [event for event in events if event["event"] == "connections_ended"]
        assert {"127.0.0.1"} == {event["peer"] for event in ended}
        assert COUNT_MAX - SHARE <= sum(event["count"] for event in ended)
        registry = CollectorRegistry()
        registry.register(connections)
        text = generate_latest(registry).decode()
        assert f"connections_ended_total {connections.ended_count:.1f}" in text


@both
def test_a_connection_with_a_call_is_not_ended(serve: Serve, tmp_path: Path) -> None:
    """
    It is the oldest, its host has too many, and its call takes long.
    """
    with serve(tmp_path) as (address, connections), ExitStack() as stack:
        [busy] = opened(address, 1, stack)
        busy.begin(1, "/grpc.health.v1.Health/Check")
        busy.settle()
        opened(address, COUNT_MAX - 1, stack)
        with watched(connections):
            Event().wait(3 * GRACE_S)
        busy.finish(1)

        assert connections.ended_count >= COUNT_MAX - SHARE - 1
        assert Type.DATA in (found.type for found in busy.frames())


@both
def test_a_connection_that_was_used_goes_after_those_that_were_not(
    serve: Serve, tmp_path: Path
) -> None:
    """
    That of a datanode, between two heartbeats, stays.
    """
    with serve(tmp_path) as (address, connections), ExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = stack.enter_context(grpc.insecure_channel(address, options=options))
        states: list[grpc.ChannelConnectivity] = []
        stub = health_pb2_grpc.HealthStub(channel)
        stub.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_S)
        channel.subscribe(states.append)
        opened(address, COUNT_MAX - 1, stack)
        with watched(connections):
            Event().wait(3 * GRACE_S)

        assert connections.ended_count >= COUNT_MAX - SHARE - 1
        assert grpc.ChannelConnectivity.READY is states[-1]
        assert 1 == len([one for one in states if one is grpc.ChannelConnectivity.READY])


def test_few_connections_are_left_alone(tmp_path: Path) -> None:
    """
    A peer within its share, and sockets that are none of the server's.
    """
    with datanode(tmp_path) as (address, connections), ExitStack() as stack:
        opened(address, SHARE - 1, stack)
        pairs = [socket.socketpair() for _ in range(COUNT_MAX)]
        with watched(connections):
            Event().wait(2 * GRACE_S)

        assert 0 == connections.ended_count
        for one, other in pairs:
            one.sendall(b"x")
            assert b"x" == other.recv(1)
            one.close()
            other.close()
