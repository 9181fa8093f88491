"""A client that stores files while the control plane restarts: it waits, and loses nothing."""

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from suture.client.cluster_client import ClusterClient
from suture.client.file_pieces import SourceFile
from suture.client.writer import StoredFile
from suture.errors import Code, SutureError, UnavailableError
from suture.runtime.exit_codes import ExitCode
from suture.wire.v1 import scm_pb2
from tests.support.command_line import CommandLine
from tests.support.nursery import forked
from tests.support.waiting import wait_until
from tools.demo.cluster import Cluster

pytestmark = [pytest.mark.fault, pytest.mark.slow]

WAIT_S = 60.0
SECTIONS = "[scan]\nenabled = false\nwatch = false\n"


def source(path: Path, size_bytes: int = 50_000) -> SourceFile:
    """Make a file to store."""
    path.write_bytes(os.urandom(size_bytes))
    return SourceFile(path.name, path, size_bytes)


def restart_without(cluster: Cluster, index: int) -> None:
    """Restart the control plane while one datanode is away: it stays in safe mode."""
    address = cluster.scm.address
    cluster.nodes[index].stop()
    cluster.scm.stop()
    cluster.scm.arguments = cluster.scm_arguments(address)
    cluster.scm.start()


def test_a_put_waits_for_the_end_of_safe_mode(tmp_path: Path) -> None:
    """The control plane has just started. The reason is reported once, and then everything is
    stored. A control plane that is away for good gives an error at once.
    """
    file = source(tmp_path / "file")
    with Cluster(
        tmp_path / "c", agents=4, volumes=1, agent_sections=SECTIONS, launch=forked
    ) as cluster:
        restart_without(cluster, 3)
        heard: list[SutureError] = []
        is_heard = threading.Event()

        def waits(error: SutureError) -> None:
            heard.append(error)
            is_heard.set()

        def put() -> list[StoredFile]:
            with ClusterClient(cluster.scm.address) as client:
                return client.put([file], lanes=1, waits=waits)[0]

        with ThreadPoolExecutor(1) as pool:
            storing = pool.submit(put)
            assert is_heard.wait(WAIT_S)
            assert not storing.done()
            cluster.start_again(3)
            [stored] = storing.result(WAIT_S)

        with ClusterClient(cluster.scm.address) as client:
            assert file.path.read_bytes() == b"".join(client.get("file"))
        assert [Code.SAFE_MODE] == [error.code for error in heard]
        assert 3 == stored.replicas_min

        cluster.scm.stop()
        with (
            ClusterClient(cluster.scm.address) as client,
            pytest.raises(UnavailableError) as caught,
        ):
            client.put([file], lanes=1, waits=waits)
        assert Code.UNAVAILABLE is caught.value.code
        assert 1 == len(heard)


@pytest.mark.parametrize("agents", [3, 4])
def test_safe_mode_ends_while_one_datanode_is_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], agents: int
) -> None:
    """The default options are used. Until then every command states what it waits for."""
    files = [source(tmp_path / f"file{number}") for number in range(3)]
    with Cluster(
        tmp_path / "c", agents=agents, volumes=1, agent_sections=SECTIONS, launch=forked
    ) as cluster:
        suture = CommandLine(cluster.scm.address, capsys)
        with ClusterClient(cluster.scm.address) as client:
            client.put([files[0]], lanes=1, close=True)
            client.put([files[1]], lanes=1)
            containers = client.scm.list_container_infos(scm_pb2.ListContainerInfosRequest())
            open_id = str(max(info.container_id for info in containers.containers))
            counted = scm_pb2.CountContainersRequest()
            wait_until(lambda: client.scm.count_containers(counted).whole == 1)
        restart_without(cluster, agents - 1)

        texts = {
            " ".join(command): suture(*command, code=code)
            for *command, code in (
                ("status", ExitCode.UNAVAILABLE),  # the health of the data is unknown
                ("scm", "report", ExitCode.UNAVAILABLE),
                ("scm", "queues", ExitCode.TO_DO),
                ("scm", "safemode", ExitCode.TO_DO),
            )
        }
        [closed] = suture.json("scm", "close", open_id, code=ExitCode.TO_DO)["decisions"]
        with ClusterClient(cluster.scm.address) as client:
            wait_until(lambda: not client.scm.safe_mode(scm_pb2.SafeModeRequest()).on)
            reason = client.scm.safe_mode(scm_pb2.SafeModeRequest()).reason
            assert files[0].path.read_bytes() == b"".join(client.get("file0"))
            if agents == 4:
                [stored] = client.put([files[2]], lanes=1)[0]
                assert 3 == stored.replicas_min
        queues = suture("scm", "queues")

    assert "OK" == closed["code"]
    assert closed["message"].endswith("; the control plane is in safe mode")
    for text in texts.values():
        assert "safe mode" in text
        assert f"{agents} nodes that were online have reported" in text
        assert "1970" not in text
    assert f"{agents - 1} of {agents} nodes that were online have reported" in reason
    assert re.search(r"with ([12]) of \1 closed containers; the others are away", reason)
    assert "safe mode" not in queues


def test_a_put_goes_on_after_a_restart(tmp_path: Path) -> None:
    """
    A control plane that answered before and is away now is being restarted: what was begun is
    finished when it is back.
    """
    files = [source(tmp_path / f"file{number}", 100_000) for number in range(2)]
    with Cluster(
        tmp_path / "c", agents=3, volumes=1, agent_sections=SECTIONS, launch=forked
    ) as cluster:
        is_half, is_away = threading.Event(), threading.Event()

        def progress(_length_bytes: int) -> None:
            is_half.set()
            assert is_away.wait(WAIT_S)

        def put() -> list[StoredFile]:
            with ClusterClient(cluster.scm.address) as client:
                return client.put(files, lanes=1, close=True, progress=progress)[0]

        with ThreadPoolExecutor(1) as pool:
            storing = pool.submit(put)
            assert is_half.wait(WAIT_S)
            address = cluster.scm.address
            cluster.scm.stop()
            is_away.set()
            cluster.scm.arguments = cluster.scm_arguments(address)
            cluster.scm.start()
            stored = storing.result(2 * WAIT_S)

        with ClusterClient(address) as client:
            keys = client.scm.list_keys(scm_pb2.ListKeysRequest()).keys
            assert sorted(item.key for item in stored) == sorted(key.key for key in keys)
            for file in files:
                assert file.path.read_bytes() == b"".join(client.get(file.key))
