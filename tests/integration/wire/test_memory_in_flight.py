"""Data in flight in an agent or the SCM is bounded in bytes, whatever its callers do with it."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from agent.store.replica_store import ReplicaStore
from merkle.replica import LAYOUT_VERSION
from suture.runtime.memory import MemoryBudget
from suture.wire.clients.scm import ScmClient
from suture.wire.mapping.rpc_services import DATANODE, Stub
from suture.wire.server.blocked_calls import SLOW_S
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.control.scm_process import ScmProcess
from tests.support.control.scripted_scm import ScriptedScm
from tests.support.faults.raw_http2 import RawHttp2
from tests.support.faults.victim import Victim, write_config
from tests.support.ozone.ozone_agent import SEND, UPLOAD, OzoneAgent
from tests.support.storage.stores import options_of_test, write_block

MIB = 1024**2
IN_FLIGHT_BYTES = 64 * MIB
SERVED_S = 60.0
SCM_IN_FLIGHT_BYTES = 128 * MIB
AHEAD_BYTES = MIB  # gRPC reads so much of a call before the call may take memory
PUSH_S = 10.0
NODE_COUNT = 2_000
RACK_CHARS = 120
ASKED = datanode_pb2.ReadBlockRequest(block_id=container_pb2.BlockId(container_id=1, local_id=1))


@pytest.fixture
def scm() -> Iterator[ScriptedScm]:
    """An SCM that orders nothing."""
    with ScriptedScm() as scripted:
        yield scripted


def rss_bytes(pid: int) -> int:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def connected(address: str, opened: ExitStack) -> Stub:
    """Return a stub over a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = opened.enter_context(grpc.insecure_channel(address, options=options))
    return Stub(channel, DATANODE)


def test_streams_that_nobody_reads_hold_no_more_than_the_budget(
    tmp_path: Path, scm: ScriptedScm
) -> None:
    """120 streams are started and none is read. Without a bound each took 7 MB. A client that
    reads is served meanwhile, because the idle streams are ended.
    """
    volume = tmp_path / "volume"
    stored = ReplicaStore.open(
        [volume], cluster_id=scm.cluster_id, datanode_id="dn-1", options=options_of_test()
    )
    stored.create_container(1)  # type: ignore[arg-type]
    write_block(stored, 1, 1, chunk_count=4, chunk_bytes=8 * MIB)
    stored.close()
    config = write_config(tmp_path / "agent.toml", volume, scm.address)
    text = config.read_text().replace("[node]", f"[node]\nin_flight_bytes = {IN_FLIGHT_BYTES}")
    config.write_text(text)
    with Victim(tmp_path / "agent.log") as victim, ExitStack() as opened:
        victim.start(config)
        assert scm.wait_until(lambda: bool(scm.replicas))
        address = scm.registrations[-1].address
        with ExitStack() as first:
            read = sum(len(m.data) for m in connected(address, first).ReadBlock(ASKED))
        assert 32 * MIB == read
        pid = victim.pid
        before_bytes = rss_bytes(pid)
        stubs = [connected(address, opened) for _ in range(4)]
        unread = [stubs[n % 4].ReadBlock(ASKED, timeout=SERVED_S) for n in range(120)]
        with ThreadPoolExecutor(1) as reader:
            stub = connected(address, opened)
            served = reader.submit(
                lambda: sum(
                    len(m.data)
                    for m in stub.ReadBlock(ASKED, timeout=SERVED_S, wait_for_ready=True)
                )
            )
            taken = served.result(SERVED_S)
        grown_bytes = rss_bytes(pid) - before_bytes
        for call in unread:
            call.cancel()
        victim.stop()

    assert 32 * MIB == taken
    assert grown_bytes < IN_FLIGHT_BYTES, f"{grown_bytes / MIB:.0f} MiB"


def test_answers_of_the_scm_that_nobody_takes_hold_no_more_than_the_budget(tmp_path: Path) -> None:
    """
    The SCM lists many datanodes with long names 300 times, and no answer is taken. A client that
    takes its answer is served meanwhile.
    """
    scm = ScmProcess.start(
        tmp_path / "data",
        log_level="error",
        audit_file=str(tmp_path / "audit"),
        in_flight_bytes=SCM_IN_FLIGHT_BYTES,
    )
    try:
        with ExitStack() as opened:
            stub = opened.enter_context(ScmClient(scm.address, timeout_s=SERVED_S))
            for number in range(NODE_COUNT):
                stub.register(
                    scm_pb2.RegisterRequest(
                        datanode_id=f"dn-{number}",
                        address=f"127.0.0.1:{number + 1}",
                        rack="/" + "r" * RACK_CHARS,
                        boot_id=1,
                        layout_version=LAYOUT_VERSION,
                    )
                )
            size_bytes = stub.list_nodes(scm_pb2.ListNodesRequest()).ByteSize()
            before_bytes = rss_bytes(scm.process.pid)
            for _ in range(3):
                raw = opened.enter_context(RawHttp2(scm.address))
                raw.greet(window_bytes=0)
                for number in range(120):
                    raw.begin(2 * number + 1, "/suture.v1.Scm/ListNodes")
                    raw.finish(2 * number + 1)
                raw.settle()
            ends_at_s = time.monotonic() + PUSH_S
            while time.monotonic() < ends_at_s:
                nodes = stub.list_nodes(scm_pb2.ListNodesRequest()).nodes
            grown_bytes = rss_bytes(scm.process.pid) - before_bytes
    finally:
        scm.kill()

    assert size_bytes > MIB // 4
    assert NODE_COUNT == len(nodes)
    assert grown_bytes < SCM_IN_FLIGHT_BYTES // 2, f"{grown_bytes / MIB:.0f} MiB"


def test_requests_of_the_scm_that_do_not_end_hold_no_more_than_the_budget(tmp_path: Path) -> None:
    """
    40 heartbeats are begun, and of each the last byte of 30 MiB is not sent. A call that ends is
    answered meanwhile. What gRPC reads ahead of calls that wait is beside the budget.
    """
    scm = ScmProcess.start(
        tmp_path / "data", log_level="error", in_flight_bytes=SCM_IN_FLIGHT_BYTES
    )
    try:
        with ExitStack() as opened:
            before_bytes = rss_bytes(scm.process.pid)
            pool = opened.enter_context(ThreadPoolExecutor(40))
            raws = [opened.enter_context(RawHttp2(scm.address)) for _ in range(40)]
            pushes = [
                pool.submit(raw.push, 1, "/suture.v1.Scm/Heartbeat", 30 * MIB, PUSH_S)
                for raw in raws
            ]
            client = opened.enter_context(ScmClient(scm.address, timeout_s=SERVED_S))
            client.list_nodes(scm_pb2.ListNodesRequest())
            pushed = sum(push.result() for push in pushes)
            grown_bytes = rss_bytes(scm.process.pid) - before_bytes
    finally:
        scm.kill()

    assert pushed > SCM_IN_FLIGHT_BYTES // 2
    held_max = SCM_IN_FLIGHT_BYTES + len(raws) * AHEAD_BYTES
    assert grown_bytes < held_max, f"{grown_bytes / MIB:.0f} MiB of {pushed / MIB:.0f}"


@pytest.mark.parametrize("method", [SEND, UPLOAD])
def test_ozone_requests_that_do_not_end_are_taken_within_the_budget(
    tmp_path: Path, method: str
) -> None:
    """
    Ten peers of Ozone send 30 MiB each, but the last byte. Two messages are taken before calls
    that wait for their caller give way.
    """
    agent = OzoneAgent(tmp_path, memory=MemoryBudget(IN_FLIGHT_BYTES * 2))
    try:
        with ExitStack() as opened, ThreadPoolExecutor(10) as pool:
            raws = [opened.enter_context(RawHttp2(agent.address)) for _ in range(10)]
            pushes = [pool.submit(raw.push, 1, method, 30 * MIB, SLOW_S * 2 / 3) for raw in raws]
            pushed = [push.result() for push in pushes]
    finally:
        agent.close()

    assert sum(pushed) < 2 * IN_FLIGHT_BYTES, [f"{size / MIB:.0f} MiB" for size in pushed]
    assert max(pushed) > 8 * MIB
