"""What a stranger may cost our servers: both of them, over real sockets, by hand where gRPC's own
client would be too polite."""

import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from agent.services.limits import DatanodeServerLimits
from scm.api.server import MESSAGE_BYTES_MAX as SCM_MESSAGE_BYTES_MAX
from scm.api.server import ScmServerLimits as ScmLimits
from scm.api.server import build_server
from scm.api.service import ScmService
from suture.errors import RefusedError
from suture.wire.clients.channel import HEADERS_BYTES_MAX
from suture.wire.clients.channel import MESSAGE_BYTES_MAX as DATANODE_MESSAGE_BYTES_MAX
from suture.wire.mapping.rpc_services import DATANODE, SCM, Stub
from suture.wire.security.caller import Role
from suture.wire.security.tls import LOOPBACK_ONLY, Security
from suture.wire.server.server_options import ConnectionLimits
from suture.wire.v1 import datanode_pb2, scm_pb2
from tests.support.authority import Authority
from tests.support.control.scm_world import ScmWorld
from tests.support.faults.raw_http2 import (
    ENHANCE_YOUR_CALM,
    REFUSED_STREAM,
    STREAMS_MAX,
    RawHttp2,
    Type,
    error_of,
    frame,
)
from tests.support.storage.datanodes import Datanode

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
STREAM_COUNT = 3
CONNECTION_COUNT = 4
SHORT = ConnectionLimits(handshake_ms_max=200)
Served = AbstractContextManager[str]
Serve = Callable[[Path, ConnectionLimits, Security], Served]


@contextmanager
def datanode(
    path: Path, patience: ConnectionLimits = SHORT, security: Security = LOOPBACK_ONLY
) -> Iterator[str]:
    """Serve a datanode; yield its address."""
    node = Datanode("dn1", path)
    try:
        node.replica.create()
        node.serve(
            limits=DatanodeServerLimits(
                streams_max=STREAM_COUNT, connections_max=CONNECTION_COUNT, patience=patience
            ),
            security=security,
        )
        yield node.address
    finally:
        node.close()


@contextmanager
def control_plane(
    path: Path, patience: ConnectionLimits = SHORT, security: Security = LOOPBACK_ONLY
) -> Iterator[str]:
    """Serve a control plane; yield its address."""
    limits = ScmLimits(
        streams_max=STREAM_COUNT, connections_max=CONNECTION_COUNT, patience=patience
    )
    with ScmWorld(path).running() as world, ThreadPoolExecutor(4) as threads:
        service = ScmService(world.control)
        built = build_server(service, "127.0.0.1:0", threads, security=security, limits=limits)
        built.server.start()
        try:
            yield built.address
        finally:
            built.server.stop(0).wait()


def test_a_port_that_there_is_not_is_not_another_one(tmp_path: Path) -> None:
    """
    gRPC would bind the lower 16 bits of it, and the server say that it listens there.
    """
    with (
        ScmWorld(tmp_path).running() as world,
        ThreadPoolExecutor(4) as threads,
        pytest.raises(RefusedError, match="98590: a port is at most 65535"),
    ):
        build_server(ScmService(world.control), "127.0.0.1:98590", threads)


both = pytest.mark.parametrize("serve", [datanode, control_plane])


@both
def test_streams_beyond_the_limit_are_refused(serve: Serve, tmp_path: Path) -> None:
    """A connection has a limit of concurrent calls. A client that ignores it gets each further
    call refused, and those under way continue.
    """
    with serve(tmp_path, SHORT, LOOPBACK_ONLY) as address, RawHttp2(address) as raw:
        settings = raw.greet()
        for number in range(STREAM_COUNT + 2):
            raw.begin(2 * number + 1, CHECK)
        refused: dict[int, int] = {}
        answered: set[int] = set()
        for found in raw.frames():
            if found.type == Type.RST_STREAM:
                refused[found.stream_id] = error_of(found)
                for number in range(STREAM_COUNT) if len(refused) == 2 else ():
                    raw.finish(2 * number + 1)
            elif found.type == Type.DATA:
                answered.add(found.stream_id)
            if len(answered) == STREAM_COUNT:
                break

    assert STREAM_COUNT == settings[STREAMS_MAX]
    assert {1, 3, 5} == answered
    assert {7: REFUSED_STREAM, 9: REFUSED_STREAM} == refused


@both
def test_silent_connections_are_closed(serve: Serve, tmp_path: Path) -> None:
    """Their places are free again: silent connections in every place do not keep others out."""
    with serve(tmp_path, SHORT, LOOPBACK_ONLY) as address, ExitStack() as opened:
        silent = [opened.enter_context(RawHttp2(address)) for _ in range(CONNECTION_COUNT)]

        assert all(raw.is_closed() for raw in silent)
        with RawHttp2(address) as raw:
            assert raw.greet()


@both
def test_silence_is_cut_off_over_tls_too(serve: Serve, tmp_path: Path) -> None:
    """
    Before the handshake of TLS the same bound holds.
    """
    authority = Authority(tmp_path / "authority")
    security = authority.security("server", Role.PEER, Role.SCM)
    with serve(tmp_path / "data", SHORT, security) as address, RawHttp2(address) as raw:
        assert raw.is_closed()


@both
def test_a_connection_ends_by_age_and_by_idleness(serve: Serve, tmp_path: Path) -> None:
    """This holds for every caller. A call under way may end, and then the connection is closed
    and may be made again.
    """
    for patience in (
        ConnectionLimits(age_ms_max=200, grace_ms=200),
        ConnectionLimits(idle_ms_max=200, age_ms_max=3_600_000),
    ):
        with (
            serve(tmp_path / str(patience.age_ms_max), patience, LOOPBACK_ONLY) as address,
            RawHttp2(address) as raw,
        ):
            raw.greet()
            if patience.idle_ms_max > patience.age_ms_max:
                raw.begin(1, CHECK)  # it does not keep the connection beyond the grace

            assert any(found.type == Type.GOAWAY for found in raw.frames())
            assert raw.is_closed()


@both
def test_a_client_that_pings_without_end_is_sent_away(serve: Serve, tmp_path: Path) -> None:
    """
    Pings cost an answer each; more often than every ten seconds is too often.
    """
    with serve(tmp_path, SHORT, LOOPBACK_ONLY) as address, RawHttp2(address) as raw:
        raw.greet()
        raw.socket.sendall(frame(Type.PING, struct.pack(">Q", 7)) * 12)

        assert ENHANCE_YOUR_CALM == error_of(raw.until(Type.GOAWAY))
        assert raw.is_closed()


@both
def test_watchers_that_come_and_go_stop_nothing(serve: Serve, tmp_path: Path) -> None:
    """The library's own Watch could stop a whole server. Suture's answers that it is not
    implemented.
    """
    with serve(tmp_path, SHORT, LOOPBACK_ONLY) as address:
        for _ in range(30):
            with RawHttp2(address) as raw:
                raw.greet()
                for number in range(STREAM_COUNT):
                    raw.begin(2 * number + 1, WATCH)
                    raw.finish(2 * number + 1)
        with grpc.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            health = stub.Check(request, timeout=30.0, wait_for_ready=True)
            watching = outcome(lambda *a, **k: list(stub.Watch(*a, **k)), request)

    assert health_pb2.HealthCheckResponse.SERVING == health.status
    assert grpc.StatusCode.UNIMPLEMENTED == watching


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_messages_and_headers_have_a_size(tmp_path: Path, compression: grpc.Compression) -> None:
    """Larger ones are refused, also those that are large only when unpacked. Those within the
    bounds are processed.
    """
    unbounded = [("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 2**20)]
    headers = [("x-large", "x" * HEADERS_BYTES_MAX * 2)]
    large = datanode_pb2.WriteChunkRequest(data=bytes(DATANODE_MESSAGE_BYTES_MAX + 1))
    long = scm_pb2.AllocateBlocksRequest(client_id="x" * (SCM_MESSAGE_BYTES_MAX + 1))
    with (
        datanode(tmp_path / "datanode") as node,
        control_plane(tmp_path / "scm") as scm,
        grpc.insecure_channel(node, unbounded, compression) as to_node,
        grpc.insecure_channel(scm, unbounded, compression) as to_scm,
    ):
        write = Stub(to_node, DATANODE).WriteChunk
        allocate = Stub(to_scm, SCM).AllocateBlocks
        for method, message in ((write, large), (allocate, long)):
            small = type(message)()

            assert grpc.StatusCode.RESOURCE_EXHAUSTED == outcome(method, message)
            assert grpc.StatusCode.INVALID_ARGUMENT == outcome(method, small)
            assert grpc.StatusCode.RESOURCE_EXHAUSTED == outcome(method, small, headers)


def outcome(
    method: Callable[..., object], request: object, headers: Sequence[tuple[str, str]] = ()
) -> grpc.StatusCode:
    """Return the status of a call."""
    try:
        method(request, timeout=30.0, metadata=headers)
    except grpc.RpcError as error:
        status: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
        return status
    return grpc.StatusCode.OK
