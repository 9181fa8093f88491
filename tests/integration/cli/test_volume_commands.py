"""suture volume against real agents: a disk is emptied, pulled, replaced, and no byte is lost."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli.main import run
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.forked_cluster import forked_cluster
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

KEYS = 8
SLOW = """data_interval_s = 60
gap_min_s = 0
floor_bytes_per_s = 65536
ceiling_bytes_per_s = 65536"""  # not 4 MB in time


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Return four datanodes with two volumes each."""
    running = forked_cluster(
        tmp_path / "cluster",
        agents=4,
        volumes=2,
    )
    with running:
        yield running


def store(suture: CommandLine, path: Path) -> dict[str, bytes]:
    """Store keys, each alone in a closed container; return what they hold."""
    stored = {}
    for number in range(KEYS):
        data = os.urandom(300_000 + number)
        (path / "file").write_bytes(data)
        suture("put", str(path / "file"), "--prefix", f"{number}/", "--close", "--sessions", "1")
        stored[f"{number}/file"] = data
    for number in range(1, KEYS + 1):
        suture.wait_until_reported(number)
    suture.wait_until_closed(list(range(1, KEYS + 1)))
    return stored


def assert_readable(suture: CommandLine, stored: dict[str, bytes], path: Path) -> None:
    """Assert that every key gives back its bytes."""
    for key, data in stored.items():
        (path / "back").unlink(missing_ok=True)
        suture("get", key, "--output", str(path / "back"))
        assert data == (path / "back").read_bytes(), key


def volumes_of(suture: CommandLine, cluster: Cluster, index: int) -> dict[str, dict[str, Any]]:
    """Return the volumes of one datanode by path."""
    found = suture.json_any("volumes", "--datanode", cluster.nodes[index].address)["volumes"]
    return {volume["path"]: volume for volume in found}


def fullest(suture: CommandLine, cluster: Cluster) -> tuple[int, str]:
    """Return the datanode and the path of the volume with most replicas."""
    counts = {
        (index, path): volume["container_count"]
        for index in range(len(cluster.nodes))
        for path, volume in volumes_of(suture, cluster, index).items()
    }
    return max(counts, key=lambda place: counts[place])


def test_a_disk_is_replaced_step_by_step(
    cluster: Cluster, suture: CommandLine, tmp_path: Path
) -> None:
    """
    Retired, the agent killed meanwhile, retired to the end; restarted, pulled, a new disk added at
    the same place: every key is read at every step, and no other datanode had to copy anything.
    """
    stored = store(suture, tmp_path)
    index, path = fullest(suture, cluster)
    address = cluster.nodes[index].address
    old_id = volumes_of(suture, cluster, index)[path]["volume_id"]

    suture("volume", "retire", f"{address}:{path}", "--yes")
    cluster.nodes[index].kill()
    assert_readable(suture, stored, tmp_path)
    cluster.start_again(index)
    [last] = suture.json("volume", "retire", old_id[:12], "--wait", "--yes")["volumes"]

    assert "RETIRED" == last["service"]
    assert 0 == last["container_count"]
    assert_readable(suture, stored, tmp_path)
    cluster.nodes[index].stop()
    cluster.start_again(index)
    assert path not in volumes_of(suture, cluster, index)
    Path(path).rename(tmp_path / "pulled")
    Path(path).mkdir()
    suture("volume", "add", path, "--datanode", address)

    assert old_id != volumes_of(suture, cluster, index)[path]["volume_id"]
    assert_readable(suture, stored, tmp_path)
    assert not any(
        o["status"]["type"] == "replicate" for o in suture.json("history", "--commands")["outcomes"]
    )
    assert {3} == {len(c["replicas"]) for c in suture.json("scm", "containers")["containers"]}
    cluster.nodes[index].stop()
    cluster.start_again(index)
    assert path in volumes_of(suture, cluster, index)


def test_retiring_volume_without_room_is_copied_to_other_datanodes(
    cluster: Cluster, suture: CommandLine, tmp_path: Path
) -> None:
    """No other volume of the host has room, so the control plane copies the replicas elsewhere
    and then removes them here. `--wait` waits for it.
    """
    stored = store(suture, tmp_path)
    index, path = fullest(suture, cluster)
    cluster.nodes[index].stop()
    config = cluster.write_config(index, cluster.nodes[index].address)
    text = config.read_text()
    config.write_text(text.replace("reserve_bytes = 0", 'reserve_bytes = "1000TiB"'))
    cluster.nodes[index].start()
    count = volumes_of(suture, cluster, index)[path]["container_count"]
    assert count

    [last] = suture.json("volume", "retire", path, "--wait", "--yes")["volumes"]

    assert "RETIRED" == last["service"]
    assert_readable(suture, stored, tmp_path)
    copies = [
        o
        for o in suture.json("history", "--commands", "--count", "1000")["outcomes"]
        if o["status"]["type"] == "replicate"
    ]
    assert count <= len(copies)
    for container in suture.json("scm", "containers")["containers"]:
        holders = {held["datanode"]["address"] for held in container["replicas"]}
        assert 2 <= len(holders), "the rule of an order to delete"
    assert [] == [
        container["container_id"]
        for container in suture.json("scm", "containers")["containers"]
        for held in container["replicas"]
        if held["replica"]["volume_id"] == last["volume_id"]
    ]


def test_migrate_read_only_and_cancel(
    cluster: Cluster, suture: CommandLine, tmp_path: Path
) -> None:
    """One volume takes all of another. A read-only one takes nothing, and a cancelled one is as
    before.
    """
    stored = store(suture, tmp_path)
    index, path = fullest(suture, cluster)
    address = cluster.nodes[index].address
    third = str(tmp_path / "third")
    Path(third).mkdir()
    suture("volume", "add", third, "--datanode", address)
    before = volumes_of(suture, cluster, index)

    shown = suture("volume", "read-only", path)
    assert "read-only" in shown
    assert 0 == volumes_of(suture, cluster, index)[path]["available_bytes"]
    suture("volume", "read-only", path, "--off")
    assert volumes_of(suture, cluster, index)[path]["available_bytes"] > 0
    suture("volume", "retire", path, "--to", third, "--wait", "--yes")

    after = volumes_of(suture, cluster, index)
    assert before[path]["container_count"] == after[third]["container_count"] > 0
    assert 0 == after[path]["container_count"]
    suture("volume", "retire", path, "--cancel")
    assert "IN_SERVICE" == volumes_of(suture, cluster, index)[path]["service"]
    assert_readable(suture, stored, tmp_path)


def test_volume_commands_refuse_unknown_volumes(cluster: Cluster, suture: CommandLine) -> None:
    """The error names the volume, and nothing is changed."""
    node = cluster.nodes[0].address
    only, other = (str(path) for path in cluster.volume_paths(0))
    elsewhere = f"{cluster.nodes[1].address}:{cluster.volume_paths(1)[0]}"

    for words in (
        ("retire", "DS-none"),
        ("retire", f"{node}:/none"),
        ("read-only", "/none"),
        ("retire", f"{node}:{only}", "--to", elsewhere, "--yes"),
        ("add", "/no/such/directory", "--datanode", node),
        ("add", "relative", "--datanode", node),
        ("add", only, "--datanode", node),
    ):
        suture.json("volume", *words, code=ExitCode.FAILED)
    suture("volume", "read-only", other)
    refused = suture.json("volume", "retire", only, "--yes", code=ExitCode.FAILED)
    assert "only volume" in refused["error"]["message"]


def test_added_volume_that_cannot_be_scanned_in_time_is_refused(
    cluster: Cluster, suture: CommandLine, tmp_path: Path
) -> None:
    """The volume is refused before it serves anything, and the next start does not open it. With
    a config that only warns, it is added and scanned.
    """
    full = {}
    for index, node in enumerate(cluster.nodes):
        empty, full[node.address] = map(str, cluster.volume_paths(index))
        suture("volume", "read-only", f"{node.address}:{empty}")
    (tmp_path / "file").write_bytes(os.urandom(6_000_000))
    suture("put", str(tmp_path / "file"), "--close")
    held = suture.wait_until_reported(1)["replicas"]
    suture("scm", "hold", "1")  # nobody replaces what is away meanwhile
    address = held[0]["datanode"]["address"]
    path = full[address]
    index = next(i for i, node in enumerate(cluster.nodes) if node.address == address)

    def restart(promise: str) -> None:
        cluster.nodes[index].stop()
        config = cluster.write_config(index, address)
        text = config.read_text().replace(f', "{path}"', "").replace("enabled = false", SLOW)
        config.write_text(f'{text}promise = "{promise}"\n')
        cluster.nodes[index].start()

    restart("refuse")
    refused = suture.json("volume", "add", path, "--datanode", address, code=ExitCode.FAILED)

    assert "cannot read every byte within the interval" in refused["error"]["message"]
    assert path not in volumes_of(suture, cluster, index)
    restart("refuse")
    assert path not in volumes_of(suture, cluster, index)
    restart("warn")
    suture("volume", "add", path, "--datanode", address)
    volume = volumes_of(suture, cluster, index)[path]
    assert 1 == volume["container_count"]
    assert "off" != volume["scrub"]["state"]


def test_unloadable_replicas_are_reported_after_volume_add(
    cluster: Cluster, suture: CommandLine, tmp_path: Path
) -> None:
    """The reason is reported at once. A retiring volume reports what is left on it, and becomes
    empty when the leftover was removed.
    """
    node, (_, path) = cluster.nodes[0], cluster.volume_paths(0)
    node.stop()
    config = cluster.write_config(0, node.address)
    config.write_text(config.read_text().replace(f', "{path}"', ""))
    node.start()
    [current] = path.glob("hdds/*/current")
    stray = current / "containerDir1" / "777"
    (stray / "chunks").mkdir(parents=True)

    suture("volume", "add", str(path), "--datanode", node.address)
    asked = ["scm", "containers", "777", "--scm", suture.scm]
    suture.wait_until(lambda: run(asked) == ExitCode.OK)

    assert "cannot be loaded: no row in the index" in suture("scm", "containers", "777")
    assert "cannot be loaded: no row" in suture("explain", "777", code=ExitCode.TO_DO)
    place = f"{node.address}:{path}"
    suture("volume", "retire", place, code=ExitCode.FAILED)
    planned = suture("volume", "retire", place, "--dry-run")
    shown = suture("volume", "retire", place, "--wait", "--yes", code=ExitCode.TO_DO)
    assert planned.startswith("would move ")
    assert "still has 1 replica" in shown
    assert str(stray) in shown.replace("\n", "")
    assert "1 replica not moved" in suture("volumes", "--datanode", node.address)
    stray.rename(tmp_path / "777")
    [last] = suture.json("volume", "retire", f"{node.address}:{path}", "--wait", "--yes")["volumes"]
    assert "RETIRED" == last["service"]
