"""What an earlier version wrote is opened, read, proven and gone on with by this one."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from agent.cli.main import run
from agent.cli.terminal.output import Exit
from agent.demo.cluster import Cluster
from suture import Client
from tests.support.command_line import CommandLine
from tests.support.faults.nursery import forked
from tests.support.ozone.ozone_volumes import unpack

pytestmark = pytest.mark.slow

KEPT: Final = Path(__file__).parents[1] / "golden" / "upgrade"
VERSIONS: Final = sorted(path.name.removesuffix(".tar.zst") for path in KEPT.glob("*.tar.zst"))
AGENTS: Final = 4
KILLED: Final = 3  # the index of the agent that was killed, and not stopped


class Upgraded(Cluster):
    """A cluster of this version over what an earlier one kept."""

    expected: dict[str, Any]


@pytest.fixture(params=VERSIONS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Upgraded]:
    """Start today's programs on the data of a version."""
    with upgraded(request.param, tmp_path, agents=AGENTS) as running:
        yield running


def upgraded(version: str, root: Path, *, agents: int) -> Upgraded:
    """Return a cluster over the data of a version. Nothing heals before it was looked at."""
    unpack(KEPT / f"{version}.tar.zst", root)
    made = Upgraded(
        root,
        agents=agents,
        volumes=2,
        heartbeat_interval_ms=100,
        scm_settings={"heal": "false"},
        launch=forked,
    )
    made.expected = json.loads((root / "expected.json").read_text())
    return made


@pytest.mark.parametrize("version", VERSIONS)
def test_the_state_is_whole_before_anybody_reports(
    version: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """
    Without any agent the control plane knows what it knew: nodes, keys, containers, each replica,
    and what was suppressed.
    """
    with upgraded(version, tmp_path, agents=0) as cluster:
        suture = CommandLine(cluster.scm.address, capsys)

        nodes_are_known(suture, cluster.expected)
        containers_are_known(suture, cluster.expected)
        assert sorted(cluster.expected["keys"]) == sorted(one["key"] for one in suture.json("ls"))


def test_all_that_was_kept_is_there(
    cluster: Upgraded, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """
    Nodes, keys, containers, orders, findings and history are as they were left, every key reads
    back byte for byte, damage is mended, and a scan of every replica finds nothing; the state can
    be backed up, and what is new is stored beside it. So it is after one more restart, too.
    """
    suture = CommandLine(cluster.scm.address, capsys)
    suture.wait_until(lambda: is_reported(suture, cluster.expected))

    nodes_are_known(suture, cluster.expected)
    containers_are_known(suture, cluster.expected)
    keys_read_back(cluster)
    assert all(suture.json("history", one) for one in cluster.expected["replicas"])
    damage_is_known_and_mended(suture, cluster.expected)
    every_replica_is_healthy(suture, cluster.expected)
    life_goes_on(cluster, suture, tmp_path)
    cluster.stop()
    for index in range(AGENTS):
        for volume in cluster.volume_paths(index):
            assert Exit.OK == run(["fsck", str(volume)]), capsys.readouterr()
    cluster.start()
    again = CommandLine(cluster.scm.address, capsys)
    again.wait_until(lambda: is_reported(again, cluster.expected))
    keys_read_back(cluster)
    every_replica_is_healthy(again, cluster.expected)


def test_an_agent_that_was_killed_is_opened_by_itself(
    cluster: Upgraded, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    What only the killed agent still had to make right is right, with all others gone: each of its
    replicas reads whole.
    """
    suture = CommandLine(cluster.scm.address, capsys)
    suture.wait_until(lambda: is_reported(suture, cluster.expected))

    for index in range(AGENTS):
        if index != KILLED:
            cluster.nodes[index].kill()
    address = cluster.nodes[KILLED].address
    for name, container_id in cluster.expected["containers"].items():
        if name != "open":
            suture("scan", str(container_id), "--wait", "--datanode", address)


def is_reported(suture: CommandLine, expected: dict[str, Any]) -> bool:
    """Whether the control plane has heard of all replicas that were there."""
    return all(
        len(replicas) == len(suture.json("scm", "container", container_id)["replicas"])
        for container_id, replicas in expected["replicas"].items()
    )


def nodes_are_known(suture: CommandLine, expected: dict[str, Any]) -> None:
    """Datanodes are who they were, and who left has left."""
    nodes = {node["datanode_id"]: node["op_state"] for node in suture.json("scm", "nodes")}
    assert expected["nodes"] == nodes


def containers_are_known(suture: CommandLine, expected: dict[str, Any]) -> None:
    """Containers and replicas have their states, and what was suppressed still is."""
    names = {container_id: name for name, container_id in expected["containers"].items()}
    for item in suture.json("scm", "containers"):
        state = "OPEN" if names[int(item["container_id"])] == "open" else "CLOSED"
        assert state == item["state"], names[int(item["container_id"])]
    for container_id, replicas in expected["replicas"].items():
        shown = suture.json("scm", "container", container_id)["replicas"]
        found = [[one["datanode"]["datanode_id"], one["replica"]["state"]] for one in shown]
        assert sorted(replicas) == sorted(found), names[int(container_id)]
    assert str(expected["containers"]["small"]) in suture("scm", "holds")


def keys_read_back(cluster: Upgraded) -> None:
    """Every key has the bytes that were put; what was deleted stays deleted."""
    expected = cluster.expected["keys"]
    with Client(cluster.scm.address) as client:
        names = {info.key for info in client.list()}
        read = {name: sha256(client.get(name)).hexdigest() for name in expected}
    assert {*expected} == {name for name in names if not name.startswith("new/")}
    assert expected == read


def damage_is_known_and_mended(suture: CommandLine, expected: dict[str, Any]) -> None:
    """The finding of the earlier version is told, and a reconcile ends it."""
    damaged = expected["containers"]["damaged"]
    found = suture.json_any("findings")
    assert [damaged] == [int(one["container_id"]) for one in found], found
    suture("reconcile", str(damaged))
    suture.wait_until(lambda: not suture.json_any("findings"))


def every_replica_is_healthy(suture: CommandLine, expected: dict[str, Any]) -> None:
    """A scan of every byte of every closed replica finds nothing."""
    for name, container_id in expected["containers"].items():
        if name != "open":
            suture("scan", str(container_id), "--wait")


def life_goes_on(cluster: Upgraded, suture: CommandLine, folder: Path) -> None:
    """The open container takes a new key and closes; the state is backed up, and reads back."""
    (folder / "new").mkdir()
    (folder / "new" / "today").write_bytes(b"today")
    suture("put", str(folder / "new"), "--close")
    state = ("--data", str(cluster.root / "scm"))
    assert Exit.OK == run(["scm", "backup", str(folder / "backups"), *state])
