"""Connections of one peer keep nobody else from a server, over real sockets."""

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Self

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, generate_latest

from agent.services.limits import DatanodeServerLimits
from merkle.replica import LAYOUT_VERSION
from scm.api.server import ScmServerLimits as ScmLimits
from scm.api.server import build_server
from scm.api.service import ScmService
from suture.runtime.call_thread_pool import CallThreadPool
from suture.runtime.loop import WorkerLoop
from suture.wire.clients.scm import ScmClient
from suture.wire.server.connections import GRACE_S, Connections
from suture.wire.v1 import scm_pb2
from tests.support.control.scm_process import ScmProcess
from tests.support.control.scm_world import ScmWorld
from tests.support.control.scripted_scm import ScriptedScm
from tests.support.faults.raw_http2 import PREFACE, RawHttp2, Type
from tests.support.faults.victim import Victim, write_config
from tests.support.heard import logged
from tests.support.storage.datanodes import Datanode
from tests.support.waiting import wait_until

COUNT_MAX = 40
SHARE = COUNT_MAX // 4
ANSWER_S = 20.0
HEALTH_CHECK = "/grpc.health.v1.Health/Check"
KNOWN = "127.0.0.9:9860"  # where a datanode is
PAUSE_S = 0.005
Known = Callable[[], Iterable[str]]
Serve = Callable[..., AbstractContextManager[tuple[str, Connections]]]


@contextmanager
def datanode(path: Path, known: Known = tuple) -> Iterator[tuple[str, Connections]]:
    """Serve a datanode of few connections."""
    node = Datanode("dn1", path)
    try:
        with CallThreadPool(4, 32) as threads:
            node.serve(
                limits=DatanodeServerLimits(connections_max=COUNT_MAX), threads=threads, known=known
            )
            assert node.built is not None
            yield node.address, node.built.connections
            node.stop_serving()
    finally:
        node.close()


@contextmanager
def control_plane(path: Path, known: Known = tuple) -> Iterator[tuple[str, Connections]]:
    """Serve a control plane of few connections."""
    limits = ScmLimits(connections_max=COUNT_MAX)
    with ScmWorld(path).running() as world, ThreadPoolExecutor(4) as threads:
        service = ScmService(world.control)
        built = build_server(service, "127.0.0.1:0", threads, limits=limits, known=known)
        built.server.start()
        try:
            yield built.address, built.connections
        finally:
            built.server.stop(0).wait()


both = pytest.mark.parametrize("serve", [datanode, control_plane])


@contextmanager
def watched(connections: Connections) -> Iterator[None]:
    """Have the worker run."""
    loop = WorkerLoop(connections)
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
    """All places are taken by idle connections. Those beyond a quarter are closed, an event and
    a metric report it, and the next caller is answered.
    """
    with serve(tmp_path) as (address, connections), ExitStack() as stack:
        opened(address, COUNT_MAX, stack)
        with logged() as events, watched(connections):
            assert is_answered(address)
            wait_until(lambda: connections.ended_count >= COUNT_MAX - SHARE)

        ended = [event for event in events if event["event"] == "connections_closed"]
        assert {"127.0.0.1"} == {event["peer"] for event in ended}
        assert COUNT_MAX - SHARE <= sum(event["count"] for event in ended)
        registry = CollectorRegistry()
        registry.register(connections)
        text = generate_latest(registry).decode()
        assert f"connections_closed_total {connections.ended_count:.1f}" in text


@both
def test_a_connection_with_a_call_is_not_ended(serve: Serve, tmp_path: Path) -> None:
    """The connection is the oldest and least recently used, its host has too many connections, and
    its call takes long."""
    with serve(tmp_path) as (address, connections), ExitStack() as stack:
        [busy] = opened(address, 1, stack)
        busy.begin(1, HEALTH_CHECK)
        busy.settle()
        for raw in opened(address, COUNT_MAX - 1, stack):
            raw.begin(1, HEALTH_CHECK)
            raw.finish(1)
            raw.until(Type.DATA)
        with watched(connections):
            wait_until(lambda: connections.ended_count >= COUNT_MAX - SHARE - 1)
        busy.finish(1)

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
            wait_until(lambda: connections.ended_count >= COUNT_MAX - SHARE - 1)

        assert grpc.ChannelConnectivity.READY is states[-1]
        assert 1 == len([one for one in states if one is grpc.ChannelConnectivity.READY])


class Flood:
    """A host that connects again and again, and says half of what a client begins with."""

    def __init__(self, address: str, source: str) -> None:
        self._address, self._source = address, source
        self._stop = Event()
        self._thread = Thread(target=self._run)
        self.count = 0

    def __enter__(self) -> Self:
        """Begin, and wait until all places were taken once."""
        self._thread.start()
        wait_until(lambda: self.count >= COUNT_MAX)
        return self

    def __exit__(self, *_: object) -> None:
        """Connect no more."""
        self._stop.set()
        self._thread.join(ANSWER_S)

    def _run(self) -> None:
        with ExitStack() as stack:
            made: list[socket.socket] = []
            while not self._stop.wait(PAUSE_S):
                with suppress(OSError):
                    raw = stack.enter_context(RawHttp2(self._address, self._source))
                    raw.socket.sendall(PREFACE[: len(PREFACE) // 2])
                    made.append(raw.socket)
                self.count += 1
                made = [one for one in made if not is_ended(one)]


def is_ended(one: socket.socket) -> bool:
    """Close a connection that the server has closed; return whether it has."""
    one.setblocking(False)
    try:
        while one.recv(65_536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    one.close()
    return True


@both
def test_a_host_that_connects_without_end_locks_nobody_out(serve: Serve, tmp_path: Path) -> None:
    """The host takes each free place, and sends only half of a greeting."""
    with serve(tmp_path) as (address, connections), watched(connections):
        with Flood(address, "127.0.0.2"):
            for _ in range(5):
                begun_s = time.monotonic()
                assert is_answered(address)
                assert time.monotonic() - begun_s < 5.0
        assert connections.ended_count > 0


def use(address: str, hosts: Sequence[str], stack: ExitStack) -> list[RawHttp2]:
    """Connect from each of some hosts in turn, and call; the server may end it before the call."""
    made = []
    for host in hosts:
        raw = stack.enter_context(RawHttp2(address, host))
        made.append(raw)
        with suppress(OSError, StopIteration):
            raw.greet()
            raw.begin(1, HEALTH_CHECK)
            raw.finish(1)
            raw.until(Type.DATA)
    return made


@both
def test_known_hosts_keep_their_idle_connections(serve: Serve, tmp_path: Path) -> None:
    """
    Forty hosts have one connection each and use it; that of a datanode, that of an operator with a
    certificate, and the one from this host were not used for longest.
    """
    asked = Event()

    def known_addresses() -> list[str]:
        asked.set()
        return [KNOWN]

    with (
        serve(tmp_path, known=known_addresses) as (address, connections),
        ExitStack() as stack,
        watched(connections),
    ):
        connections.trust("ipv4:127.0.0.8:1")
        known = [
            stack.enter_context(RawHttp2(address, host))
            for host in ("127.0.0.1", "127.0.0.8", "127.0.0.9")
        ]
        for raw in known:
            raw.greet()
        use(address, [f"127.0.1.{n}" for n in range(1, COUNT_MAX * 3 // 4)], stack)
        assert asked.wait(ANSWER_S)
        Event().wait(2 * GRACE_S)  # which new connections of known hosts have
        use(address, [f"127.0.2.{n}" for n in range(1, COUNT_MAX // 4)], stack)
        wait_until(lambda: connections.ended_count > 0)
        Event().wait(GRACE_S)

        assert not [raw for raw in known if is_ended(raw.socket)]


@contextmanager
def scm_process(path: Path) -> Iterator[str]:
    """Serve a control plane that knows a datanode on another host."""
    scm = ScmProcess.start(path / "data", connections_max=COUNT_MAX)
    try:
        with ScmClient(scm.address) as client:
            client.register(
                scm_pb2.RegisterRequest(
                    datanode_id="dn-9", address=KNOWN, boot_id=1, layout_version=LAYOUT_VERSION
                )
            )
        yield scm.address
    finally:
        scm.kill()


@contextmanager
def agent_process(path: Path) -> Iterator[str]:
    """Serve a datanode whose SCM knows another one on another host."""
    with ScriptedScm() as scm:
        scm.nodes.append(scm_pb2.NodeInfo(datanode_id="dn-9", address=KNOWN))
        config = write_config(path / "agent.toml", path / "volume", scm.address)
        with config.open("a") as file:
            file.write(f"[server]\nconnections_max = {COUNT_MAX}\n")
        with Victim(path / "agent.log") as victim:
            yield victim.start(config)


@pytest.mark.parametrize("process", [scm_process, agent_process])
def test_processes_keep_connections_of_datanodes_that_the_scm_knows(
    process: Callable[[Path], AbstractContextManager[str]], tmp_path: Path
) -> None:
    """
    Unknown hosts have one connection each and use it; the one of the datanode is the least recent.
    """
    with process(tmp_path) as address, ExitStack() as stack:
        known = stack.enter_context(RawHttp2(address, KNOWN.partition(":")[0]))
        known.greet()
        first = use(address, [f"127.0.1.{n}" for n in range(1, COUNT_MAX * 3 // 4)], stack)
        Event().wait(3 * GRACE_S)  # the process asks for datanodes meanwhile
        use(address, [f"127.0.2.{n}" for n in range(1, COUNT_MAX // 4)], stack)
        wait_until(lambda: any(is_ended(raw.socket) for raw in first))

        assert not is_ended(known.socket)


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
