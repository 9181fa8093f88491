"""Background scans of a real agent: steered, killed, resumed, and a promise refused at start."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.forked_cluster import forked_cluster
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

MIB = 1024**2
FILE_BYTES = 24 * MIB
SPEED_BYTES_PER_S = 2 * MIB
SCAN = (
    "[scan]\nwatch = false\nstart_jitter_s = 0\n"
    f"volume_bytes_per_s = {SPEED_BYTES_PER_S}\ndata_interval_s = 300\ngap_min_s = 0\n"
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster of one agent that scans slowly."""
    running = forked_cluster(
        tmp_path / "cluster",
        agent_sections=SCAN,
    )
    with running:
        yield running


@pytest.fixture
def container_id(suture: CommandLine, tmp_path: Path) -> int:
    """Store and close a container whose scan takes twelve seconds."""
    directory = tmp_path / "files"
    directory.mkdir()
    (directory / "file").write_bytes(os.urandom(FILE_BYTES))
    stored = suture.json("put", str(directory), "--prefix", "p/", "--close", "--sessions", "1")
    suture.wait_until_closed(stored["container_ids"])
    (found,) = stored["container_ids"]
    return int(found)


def volume(suture: CommandLine, address: str, *command: str) -> dict[str, object]:
    """Return the scrub status of the only volume of the datanode at `address`."""
    shown = suture.json("scrub", *(command or ("status",)), "--datanode", address)
    (datanode,) = shown["datanodes"].values()
    (found,) = datanode["volumes"]
    return dict(found)


def number(value: object) -> int:
    """Return a number of a JSON document; 64-bit ones are strings there."""
    return int(str(value))


@pytest.mark.usefixtures("container_id")
def test_a_killed_scan_goes_on_where_it_was(cluster: Cluster, suture: CommandLine) -> None:
    """kill -9 in the middle of a container costs at most ten seconds of reading."""
    node = cluster.nodes[0]
    suture.wait_until(
        lambda: number(volume(suture, node.address)["container_bytes_read"]) >= 16 * MIB
    )
    node.kill()

    node.start()
    suture.wait_until(lambda: volume(suture, node.address)["state"] == "waiting")

    read_again = number(volume(suture, node.address)["scanned_bytes"])
    lost_bytes = read_again - (FILE_BYTES - 16 * MIB)
    assert 0 < read_again < FILE_BYTES
    assert lost_bytes <= 10 * SPEED_BYTES_PER_S
    assert number(volume(suture, node.address)["oldest_read_at_ms"]) > 0


def test_a_scan_is_paused_resumed_and_cancelled(
    cluster: Cluster, suture: CommandLine, container_id: int
) -> None:
    """The status follows each command."""
    address = cluster.nodes[0].address
    suture.wait_until(lambda: volume(suture, address)["state"] == "reading")

    paused = volume(suture, address, "pause", "--for", "600")
    assert "paused" == paused["state"]
    assert 590_000 < number(paused["pause_left_ms"]) <= 600_000
    suture.wait_until(lambda: number(volume(suture, address)["container_id"]) == 0)

    volume(suture, address, "pause", "--end")
    suture.wait_until(lambda: number(volume(suture, address)["container_id"]) == container_id)

    volume(suture, address, "scan", str(container_id), "--cancel")
    suture.wait_until(lambda: volume(suture, address)["state"] == "waiting")
    assert 0 == number(volume(suture, address)["oldest_read_at_ms"])


@pytest.mark.usefixtures("container_id")
def test_people_see_a_table(suture: CommandLine) -> None:
    """State, speed and the promise in words, for all datanodes."""
    shown = suture("scrub", "status")

    assert "every byte within 5 min: kept on all volumes" in shown
    assert 3 == shown.count("reading") + shown.count("waiting")


def test_a_planted_fault_was_found_on_every_volume(cluster: Cluster, suture: CommandLine) -> None:
    """The drill runs before the first round, so the scan can be trusted at once."""

    def found() -> bool:
        volumes = [volume(suture, node.address) for node in cluster.nodes]
        assert not any(one["canary_overdue"] for one in volumes)
        return all(number(one["canary_found_at_ms"]) for one in volumes)

    suture.wait_until(found)


def test_a_volume_that_vanishes_is_fenced_and_told(
    cluster: Cluster, suture: CommandLine, container_id: int
) -> None:
    """The scan stumbles, the check fences, and the control plane no longer counts the replica."""
    address = cluster.nodes[0].address
    volume(suture, address, "pause")
    suture.wait_until(lambda: number(volume(suture, address)["container_id"]) == 0)
    shutil.rmtree(cluster.volume_paths(0)[0] / "hdds")
    suture("scrub", "pause", "--end", "--datanode", address)

    def replica_count() -> int:
        (found,) = [
            container
            for container in suture.json("scm", "containers")["containers"]
            if int(container["container_id"]) == container_id
        ]
        return len(found["replicas"])

    suture.wait_until(lambda: replica_count() == 2)
    shown = suture.json("status", "--datanode", address, code=ExitCode.TO_DO)
    (failed,) = shown["volumes"]
    assert failed["failed"]
    assert "is gone" in failed["error"]


def test_an_unknown_volume_is_refused(suture: CommandLine) -> None:
    """Otherwise an operator would assume that the volume is paused."""
    suture("scrub", "pause", "--volume", "nowhere", code=ExitCode.FAILED)


@pytest.mark.usefixtures("container_id")
def test_a_promise_that_cannot_be_kept_is_refused_at_start(
    cluster: Cluster, suture: CommandLine
) -> None:
    """The error has the calculation. With `promise = "warn"` it is a warning."""
    node = cluster.nodes[0]
    node.stop()
    config = cluster.root / "datanode1.toml"
    fixed = config.read_text().replace(f"= {SPEED_BYTES_PER_S}\n", "= 100000\n")
    config.write_text(fixed.replace("data_interval_s = 300", "data_interval_s = 60"))

    refused = subprocess.run(
        [sys.executable, "-m", "agent.main", "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert 1 == refused.returncode
    assert "within 0.00 days needs 0.44 MB/s" in refused.stderr
    assert "scan.volume_bytes_per_s gives 0.10 MB/s" in refused.stderr

    config.write_text(config.read_text() + 'promise = "warn"\n')
    node.start()
    assert not volume(suture, node.address)["interval_possible"]
