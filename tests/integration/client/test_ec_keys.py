"""Erasure-coded files on a real cluster: stored over five agents, read back whole or degraded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from suture.client.cluster_client import ClusterClient
from suture.runtime.exit_codes import ExitCode
from suture.wire.clients.block_peer import Endpoint
from suture.wire.v1 import container_pb2, datanode_pb2, scm_pb2
from tests.support.command_line import CommandLine
from tests.support.nursery import forked
from tests.support.storage.three_replicas import content
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

SCHEME = "rs-3-2-64k"
SIZES_BYTES = {"empty": 0, "byte": 1, "cell": 65_536, "part": 100_000, "stripes": 500_000}


@pytest.fixture
def five(tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster of five agents of its own: its agents are killed."""
    sections = "[scan]\nstart_jitter_s = 0\nparity_interval_s = 1\n"
    with Cluster(
        tmp_path / "cluster", agents=5, volumes=1, agent_sections=sections, launch=forked
    ) as cluster:
        yield cluster


@pytest.fixture
def suture(five: Cluster, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Return the command line of that cluster."""
    return CommandLine(five.scm.address, capsys)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a directory of files of all kinds of stripes."""
    directory = tmp_path / "files"
    directory.mkdir()
    for number, (name, size_bytes) in enumerate(SIZES_BYTES.items()):
        (directory / name).write_bytes(content(number, 0, size_bytes))
    return directory


def read_all(suture: CommandLine, files: Path, tmp_path: Path) -> dict[str, dict[str, str]]:
    """Read every file back and compare; return what was in the way, by name."""
    degraded = {}
    for path in files.iterdir():
        back = tmp_path / "back"
        told = suture.json("get", f"files/{path.name}", "--output", str(back))
        assert path.read_bytes() == back.read_bytes()
        degraded[path.name] = told["degraded"]
    return degraded


def test_files_come_back_while_two_of_five_agents_are_down(
    five: Cluster, suture: CommandLine, files: Path, tmp_path: Path
) -> None:
    """With five, four and three shards every file is whole, and the missing shards are reported,
    except for an empty file, which needs none. With two shards the read is refused and no file
    appears.
    """
    stored = suture.json("put", str(files), "--replication", SCHEME, "--sessions", "1", "--close")
    assert {5} == {item["replica_count"] for item in stored["keys"]}
    [container_id] = stored["container_ids"]
    suture.wait_until(lambda: shards_closed(five, container_id) == {1, 2, 3, 4, 5})

    whole = read_all(suture, files, tmp_path)
    five.nodes[0].kill()
    one_down = read_all(suture, files, tmp_path)
    five.nodes[3].kill()
    two_down = read_all(suture, files, tmp_path)
    five.nodes[4].kill()
    refused = suture.json(
        "get", "files/part", "--output", str(tmp_path / "none"), code=ExitCode.UNAVAILABLE
    )

    assert all(not told for told in whole.values())
    full = {name for name, size_bytes in SIZES_BYTES.items() if size_bytes}
    assert full == {name for name, told in one_down.items() if told}
    assert full == {name for name, told in two_down.items() if len(told) > len(one_down[name])}
    assert "2 of the 3 sources" in refused["error"]["message"]
    assert not (tmp_path / "none").exists()


def test_a_corrupt_shard_is_passed_over_and_told(
    five: Cluster, suture: CommandLine, files: Path, tmp_path: Path
) -> None:
    """
    A bit flipped in a data shard: the file is computed from the others. With two more away it is
    refused, with the reasons, and no file appears.
    """
    suture("put", str(files / "stripes"), "--replication", SCHEME, "--prefix", "files/")
    first_cell = (files / "stripes").read_bytes()[:65_536]
    block = next(p for p in shard_files(five) if p.read_bytes()[:65_536] == first_cell)
    data = bytearray(block.read_bytes())
    data[70_000] ^= 1
    block.write_bytes(data)

    told = suture.json("get", "files/stripes", "--output", str(tmp_path / "back"))

    assert (files / "stripes").read_bytes() == (tmp_path / "back").read_bytes()
    assert 1 == len(told["degraded"])
    assert "checksum" in next(iter(told["degraded"].values()))

    others = [
        index
        for index in range(five.agents)
        if not any(map(block.is_relative_to, five.volume_paths(index)))
    ]
    for index in others[:2]:
        five.nodes[index].kill()
    refused = suture.json(
        "get", "files/stripes", "--output", str(tmp_path / "none"), code=ExitCode.UNAVAILABLE
    )

    assert "2 of 3 cells can be read" in refused["error"]["message"]
    assert "checksum" in refused["error"]["message"]
    assert "suture scm container" in refused["error"]["hint"]
    assert not (tmp_path / "none").exists()


def test_a_lost_shard_is_rebuilt_and_fits(
    five: Cluster, suture: CommandLine, files: Path, tmp_path: Path
) -> None:
    """
    A datanode loses its shard: the control plane has it rebuilt, nothing is read degraded any
    more, and the parity scrub finds all stripes whole, as it did before.
    """
    stored = suture.json("put", str(files), "--replication", SCHEME, "--sessions", "1", "--close")
    [container_id] = stored["container_ids"]
    suture.wait_until(lambda: shards_closed(five, container_id) == {1, 2, 3, 4, 5})
    [before] = suture.json("scrub", "parity", str(container_id))["containers"]

    with ClusterClient(five.scm.address) as client:
        request = datanode_pb2.DeleteContainerRequest(container_id=container_id, force=True)
        client.peer(Endpoint("", five.nodes[1].address)).stub.DeleteContainer(request)
    suture.wait_until(lambda: len(shards_closed(five, container_id)) == 4)
    suture.wait_until(lambda: shards_closed(five, container_id) == {1, 2, 3, 4, 5})
    [after] = suture.json("scrub", "parity", "--all")["containers"]

    suture.wait_until(lambda: any(stripes_verified(suture)))
    status = suture("scrub", "status")

    assert before["clean"]
    assert after["clean"]
    assert "parity of 1 container verified" in status
    assert before["stripe_count"] == after["stripe_count"] == 1 + 1 + 1 + 3
    assert all(not told for told in read_all(suture, files, tmp_path).values())


def test_a_damaged_shard_is_mended_in_place(
    five: Cluster, suture: CommandLine, files: Path, tmp_path: Path
) -> None:
    """
    `suture reconcile` of an erasure-coded container: the chunk comes from its stripe, and the
    bytes on the disk are those that were written.
    """
    stored = suture.json(
        "put", str(files / "stripes"), "--replication", SCHEME, "--prefix", "files/", "--close"
    )
    [container_id] = stored["container_ids"]
    suture.wait_until(lambda: shards_closed(five, container_id) == {1, 2, 3, 4, 5})
    block = next(path for path in shard_files(five) if path.stat().st_size == 196_608)
    written = block.read_bytes()
    block.write_bytes(written[:70_000] + bytes([written[70_000] ^ 1]) + written[70_001:])
    suture("scrub", "scan", str(container_id), "--wait", code=ExitCode.TO_DO)

    suture("reconcile", str(container_id))
    suture.wait_until(lambda: shards_closed(five, container_id) == {1, 2, 3, 4, 5})
    suture("get", "files/stripes", "--output", str(tmp_path / "back"))

    assert written == block.read_bytes()
    assert (files / "stripes").read_bytes() == (tmp_path / "back").read_bytes()


def test_parity_is_verified_of_coded_containers_only(
    five: Cluster, suture: CommandLine, files: Path
) -> None:
    """A container of whole copies is refused, and the message names the right command."""
    stored = suture.json("put", str(files / "byte"), "--prefix", "copies/")
    [container_id] = stored["container_ids"]
    suture.wait_until_reported(container_id)

    refused = suture.json("scrub", "parity", str(container_id), code=ExitCode.FAILED)

    assert "not erasure-coded" in refused["error"]["message"]
    assert 5 == len(five.nodes)


def test_a_shard_is_asked_of_no_datanode_alone(
    five: Cluster, suture: CommandLine, files: Path
) -> None:
    """`get --datanode` works for whole copies only, as the error says. An unknown scheme is
    refused by name.
    """
    suture("put", str(files / "part"), "--replication", SCHEME, "--prefix", "files/")

    datanode = ("--datanode", five.nodes[0].address)
    refused = suture.json(
        "get", "files/part", *datanode, "--output", "/dev/null", code=ExitCode.FAILED
    )
    unknown = suture.json(
        "put", str(files / "part"), "--replication", "rs-3-2-x", code=ExitCode.FAILED
    )

    assert "is erasure-coded" in refused["error"]["message"]
    assert "invalid erasure code 'rs-3-2-x'" in unknown["error"]["message"]
    assert 5 == len(five.nodes)


def stripes_verified(suture: CommandLine) -> list[int]:
    """Return how many stripes each datanode verified in the background."""
    return [
        answer["parity"]["stripe_count"]
        for answer in suture.json("scrub", "status")["datanodes"].values()
    ]


def shards_closed(cluster: Cluster, container_id: int) -> set[int]:
    """Return the indexes of the replicas that are closed."""
    with ClusterClient(cluster.scm.address) as client:
        info = client.scm.get_container_info(
            scm_pb2.GetContainerInfoRequest(container_id=container_id)
        ).container
    closed = container_pb2.CLOSED
    return {item.replica.replica_index for item in info.replicas if item.replica.state == closed}


def shard_files(cluster: Cluster) -> list[Path]:
    """Return every block file."""
    return [
        path
        for index in range(cluster.agents)
        for volume in cluster.volume_paths(index)
        for path in sorted(volume.glob("hdds/*/current/containerDir*/*/chunks/*.block"))
    ]
