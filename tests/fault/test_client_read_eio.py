"""A client's read that fails is the first to see a bad disk: the agent looks closer by itself."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from merkle.replica import BlockId, ContainerId
from scanner.finding import DamageFault, Verdict
from suture.errors import Code, VolumeFailed
from suture.wire.clients.peer import Peer
from tests.support.command_line import CommandLine
from tests.support.forked_cluster import forked_cluster
from tests.support.storage.blocks_on_disk import newest_block
from tools.demo.cluster import Cluster, launched

pytestmark = [pytest.mark.fault, pytest.mark.slow]

C_SOURCE = Path(__file__).parents[1] / "support" / "c" / "eio.c"
COMPILE_TIMEOUT_S = 120


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster whose agents scan only what they are asked to."""
    running = forked_cluster(
        tmp_path / "cluster",
    )
    with running:
        yield running


def preload(folder: Path, bad: Path) -> dict[str, str]:
    """Compile the library; return the environment in which reads of `bad` fail."""
    library = folder / "eio.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(C_SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=COMPILE_TIMEOUT_S)
    return {
        "LD_PRELOAD": str(library),
        "EIO_PATH": str(bad),
        "EIO_COUNT": str(folder / "failed"),
    }


def test_a_read_error_of_a_client_has_volume_and_container_looked_at(
    cluster: Cluster, suture: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No background scan, change watch or operator requests the check."""
    (tmp_path / "file").write_bytes(os.urandom(100_000))
    stored = suture.json("put", str(tmp_path / "file"), "--prefix", "p/", "--close")
    suture.wait_until_closed(stored["container_ids"])
    (container_id,) = (ContainerId(number) for number in stored["container_ids"])
    node = cluster.nodes[0]
    suture.wait_until_reported(container_id)  # a replica that was left behind is copied first
    bad = newest_block(cluster, 0, container_id)
    block_id = BlockId(int(bad.stem))
    node.stop()
    node.launch = launched  # a library is preloaded when a program starts from nothing
    with monkeypatch.context() as patch:
        for name, value in preload(tmp_path, bad).items():
            patch.setenv(name, value)
        node.start()
    peer = Peer(node.address)
    try:
        with pytest.raises(VolumeFailed) as caught:
            peer.read_chunk(container_id, block_id, 0)

        suture.wait_until(lambda: "replica_scanned" in node.log.read_text())
        (finding,) = peer.findings(container_id)
    finally:
        peer.close()

    assert Code.IO_EXCEPTION == caught.value.code
    assert (tmp_path / "failed").stat().st_size >= 2, "client and scan met the injected error"
    assert (DamageFault.CHUNK_UNREADABLE, Verdict.UNREADABLE) == (finding.fault, finding.verdict)
    log = node.log.read_text()
    assert log.index("volume_check_requested") < log.index("replica_scanned")
    assert "a call failed" in log
