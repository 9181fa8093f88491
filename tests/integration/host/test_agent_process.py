"""The agent as a process: who may run it, what it says, how it stops."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from agent.store.files.layout import VolumeLayout
from agent.store.recovery.fsck import fsck
from suture.client.cluster_client import ClusterClient
from suture.wire.clients.block_peer import ENCODERS, Endpoint
from suture.wire.mapping.rpc_services import DATANODE
from suture.wire.v1 import scm_pb2
from tests.support.nursery import Child, forked
from tests.support.printed_json import document_in
from tests.support.waiting import wait_until
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

WAIT_S = 60.0


def agent(*arguments: str) -> tuple[int | None, str, str]:
    """Run an agent that is expected to end by itself; return its exit code, stdout and stderr."""
    process = Child("agent.main", *arguments)
    written, said = process.communicate(WAIT_S)
    return process.returncode, written, said


def test_a_second_agent_on_the_same_volumes_is_refused(cluster: Cluster) -> None:
    """
    The second agent ends with an error that names the first one's process.
    """
    first = cluster.nodes[0].popen
    assert first is not None

    code, _, said = agent("--config", str(cluster.root / "datanode1.toml"))

    assert 1 == code
    assert str(first.pid) in said
    assert str(cluster.volume_paths(0)[0]) in said


def test_fsck_refuses_a_volume_in_use(cluster: Cluster) -> None:
    """
    The offline check does not look at what an agent is changing.
    """
    with pytest.raises(Exception, match="pid") as caught:
        fsck(cluster.volume_paths(0)[0])

    assert "VOLUME_IN_USE" == getattr(caught.value, "code", "")


@pytest.mark.parametrize("call", DATANODE.methods_by_name)
def test_an_agent_answers_every_call(cluster: Cluster, call: str) -> None:
    """
    A request without content is answered, or refused for what it or the configuration lacks; no
    call is unknown.
    """
    with ClusterClient(cluster.scm.address) as client:
        address = client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes[0].address
        stub = client.peer(Endpoint("", address)).stub
        method = DATANODE.methods_by_name[call]
        request: Any = GetMessageClass(method.input_type)()
        if call in ENCODERS:  # the caller encodes its messages
            request = request.SerializeToString()
        asked = iter([request]) if method.client_streaming else request
        code = grpc.StatusCode.OK
        try:
            answer = getattr(stub, call)(asked, timeout=WAIT_S)
            list(answer) if method.server_streaming else answer
        except grpc.RpcError as error:
            code = error.code()

    expected = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}
    if call == "ListAudit":  # this agent has no audit file
        expected = {grpc.StatusCode.FAILED_PRECONDITION}
    assert code in expected, code


def test_sigterm_drains_and_ends_with_zero(tmp_path: Path) -> None:
    """The agent announces its stop, exits with 0, and leaves a clean volume."""
    with Cluster(tmp_path, agents=1, volumes=1) as cluster:
        [process] = cluster.nodes

        code = process.stop()

        assert 0 == code
        report = fsck(cluster.volume_paths(0)[0])
        assert () == report.problems
        assert '"agent_stopped"' in process.log.read_text()


@pytest.mark.parametrize("place", ["db", "data.mdb", "current"])
def test_a_host_whose_only_volume_fails_stays_and_reports_it(tmp_path: Path, place: str) -> None:
    """
    The agent serves its calls and its pages without a volume; the control plane lists the failed
    one with what is wrong with it, and a restart after the repair serves it again.
    """
    with Cluster(tmp_path, agents=1, volumes=1, launch=forked) as cluster:
        [process] = cluster.nodes
        process.stop()
        [known] = (cluster.volume_paths(0)[0] / "hdds").glob("*/VOLUMES")
        layout = VolumeLayout(cluster.volume_paths(0)[0], known.parent.name)
        path = {
            "db": layout.database,
            "data.mdb": layout.database / "data.mdb",
            "current": layout.current,
        }[place]
        path.rename(tmp_path / "aside")
        path.write_text("none") if place != "data.mdb" else path.mkdir()

        process.start()

        with ClusterClient(cluster.scm.address) as client:

            def failed() -> list[str]:
                [node] = client.scm.list_nodes(scm_pb2.ListNodesRequest()).nodes
                return [volume.error for volume in node.volumes if volume.failed]

            wait_until(lambda: bool(failed()), within_s=WAIT_S)
            assert str(layout.volume) in failed()[0]
            path.rmdir() if place == "data.mdb" else path.unlink()
            (tmp_path / "aside").rename(path)
            assert 0 == process.stop()
            process.start()
            wait_until(lambda: not failed(), within_s=WAIT_S)


def test_a_bad_config_is_refused(tmp_path: Path) -> None:
    """
    A config with an unknown key starts nothing and names the key.
    """
    config = tmp_path / "bad.toml"
    config.write_text('[storage]\nvolumes = ["/nowhere"]\nspeed = 1\n')

    code, _, said = agent("--config", str(config))

    assert 1 == code
    assert "storage.speed" in said


def test_check_prints_the_whole_config(tmp_path: Path) -> None:
    """
    `--check` shows every option with the value that would be used.
    """
    config = tmp_path / "good.toml"
    config.write_text('[storage]\nvolumes = ["/nowhere"]\n')

    code, shown, _ = agent("--config", str(config), "--check")

    assert 0 == code
    assert 7 * 24 * 3600 == document_in(shown)["scan"]["data_interval_s"]


def test_optimised_python_is_refused(tmp_path: Path) -> None:
    """
    Under python -O asserts would not hold the invariants: the agent does not start.
    """
    config = tmp_path / "good.toml"
    config.write_text(f'[storage]\nvolumes = ["{tmp_path}/vol"]\n')

    refused = subprocess.run(
        [sys.executable, "-O", "-m", "agent.main", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )

    assert 0 != refused.returncode
    assert "python -O" in refused.stderr


def test_the_first_start_waits_for_the_scm(tmp_path: Path) -> None:
    """
    Without an SCM an empty volume is not formatted: it would belong to no cluster.
    """
    config = tmp_path / "agent.toml"
    volume = tmp_path / "vol"
    volume.mkdir()
    config.write_text(f'[node]\nscm = "127.0.0.1:1"\n[storage]\nvolumes = ["{volume}"]\n')
    with Child("agent.main", "--config", str(config)) as waiting:
        line = waiting.stderr.readline()

        waiting.send_signal(signal.SIGTERM)

        assert 0 == waiting.wait(WAIT_S)
        assert "waiting_for_scm" in line
        assert [] == list(volume.iterdir())
