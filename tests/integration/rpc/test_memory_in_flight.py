"""What is in flight in an agent is bounded in bytes, whatever its callers do with it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from agent.rpc.v1 import container_pb2, datanode_pb2, datanode_pb2_grpc
from agent.store.replica_store import ReplicaStore
from tests.support.control.scripted_scm import ScriptedScm
from tests.support.faults.victim import Zygote, write_config
from tests.support.storage.stores import options_of_test, write_block

MIB = 1024**2
IN_FLIGHT_BYTES = 64 * MIB
SERVED_S = 60.0
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


def connected(address: str, opened: ExitStack) -> datanode_pb2_grpc.DatanodeStub:
    """Return a stub over a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channel = opened.enter_context(grpc.insecure_channel(address, options=options))
    return datanode_pb2_grpc.DatanodeStub(channel)  # type: ignore[no-untyped-call]


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
    with Zygote(tmp_path / "agent.log") as zygote, ExitStack() as opened:
        zygote.start(config)
        assert scm.wait_until(lambda: bool(scm.replicas))
        address = scm.registrations[-1].address
        with ExitStack() as first:
            read = sum(len(m.data) for m in connected(address, first).ReadBlock(ASKED))
        assert 32 * MIB == read
        pid = zygote.pid
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
        zygote.stop()

    assert 32 * MIB == taken
    assert grown_bytes < IN_FLIGHT_BYTES, f"{grown_bytes / MIB:.0f} MiB"
