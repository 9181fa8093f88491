"""Through how many modules a chunk walks to the disk, and a command to its work: a reader's way."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest

from agent.config.loading import load
from agent.host.datanode_identity import DatanodeIdentity
from agent.host.host import AgentProcess
from suture.runtime.sd_notify import SystemdNotifier
from suture.wire.clients.scm import ScmClient
from suture.wire.mapping.rpc_services import DATANODE, Stub
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.control.scripted_scm import ScriptedScm
from tests.support.packaging.tidy import PRODUCT_PACKAGES

ROOT = Path(__file__).resolve().parents[3]
WHO = DatanodeIdentity("dn1", "CID-1", version="1", boot_id=1)
CHUNK_MODULES_MAX = 9  # `budgeted` among them: the bytes that are in flight are bounded (issue 49)
COMMAND_MODULES_MAX = 5
CALL_S = 30.0
WRITES = {os.pwrite, os.write, os.writev, os.pwritev}
STORE = "agent/store/replica_store.py"  # where a command's work is
CARRIER = "suture/runtime/"
"""Runs all loops and calls alike, whatever they carry; but not what makes files durable."""
DURABLE = "suture/runtime/durable.py"


class Walks:
    """Who called whom: the modules below each write of bytes, and below each call of a function."""

    def __init__(self, *functions: str) -> None:
        self.functions = functions
        self.writes: list[list[str]] = []
        self.calls: dict[str, list[str]] = {}

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        """Look at one event, as a profile function does."""
        if event == "c_call" and argument in WRITES:
            self.writes.append(modules_below(frame))
        elif event == "call" and frame.f_code.co_qualname in self.functions:
            self.calls.setdefault(frame.f_code.co_qualname, modules_below(frame))


def modules_below(frame: FrameType | None) -> list[str]:
    """Return the modules of ours on the stack, the outermost first, each once."""
    found: dict[str, None] = {}
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            name = str(path.relative_to(ROOT))
            is_carrier = name.startswith(CARRIER) and name != DURABLE
            if name.split("/")[0] in PRODUCT_PACKAGES and not is_carrier:
                found[name] = None
        frame = frame.f_back
    return list(found)[::-1]


@pytest.fixture
def walks() -> Walks:
    """What is looked at."""
    return Walks("CommandIntake.accept", "TaskPool.submit", "ReplicaStore.close_container")


@pytest.fixture
def scm() -> Iterator[ScriptedScm]:
    """An SCM that hands out what it is told to."""
    with ScriptedScm(cluster_id=WHO.cluster_id) as scripted:
        yield scripted


@pytest.fixture
def host(walks: Walks, scm: ScriptedScm, tmp_path: Path) -> Iterator[AgentProcess]:
    """A whole agent with one volume, each thread of which is watched."""
    threading.setprofile(walks.note)
    volume = tmp_path / "volume"
    volume.mkdir()
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[node]\nlisten = "127.0.0.1:0"\nscm = "{scm.address}"\n'
        f'[storage]\nvolumes = ["{volume}"]\nreserve_bytes = 0\n'
    )
    made = AgentProcess(load(config), WHO, [ScmClient(scm.address)], SystemdNotifier())
    made.start()
    try:
        yield made
    finally:
        threading.setprofile(None)
        made.stop()


def test_write_and_command_paths_pass_through_few_modules(
    host: AgentProcess, walks: Walks, scm: ScriptedScm
) -> None:
    """The modules are counted in a running agent, from the call to the write of its bytes and
    from the heartbeat to the store, including the threads and queues between them.
    """
    with grpc.insecure_channel(host.address) as channel:
        datanode = Stub(channel, DATANODE)
        made = datanode_pb2.CreateContainerRequest(container_id=1)
        datanode.CreateContainer(made, timeout=CALL_S)
        walks.writes.clear()
        block = container_pb2.BlockId(container_id=1, local_id=1, bcsid=1)
        chunk = container_pb2.ChunkInfo(offset=0, length=5)
        sent = datanode_pb2.WriteChunkRequest(block_id=block, chunk=chunk, data=b"bytes")
        datanode.WriteChunk(sent, timeout=CALL_S)
    order = scm_pb2.Command(command_id=1, term=1, close=scm_pb2.CloseCommand(container_id=1))
    scm.order(order)
    assert scm.wait_for(1) is not None

    (chunk_walk,) = [walk for walk in walks.writes if "agent/store/operations/writing.py" in walk]
    command_walk = {name for walk in walks.calls.values() for name in walk} - {STORE}
    assert {"agent/services/write_handlers.py", DURABLE} <= set(chunk_walk)
    assert len(chunk_walk) <= CHUNK_MODULES_MAX, chunk_walk
    assert {"agent/host/heartbeat.py", "agent/commands/handlers.py"} <= command_walk
    assert len(command_walk) <= COMMAND_MODULES_MAX, walks.calls
