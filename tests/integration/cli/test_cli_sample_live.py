"""`suture scrub sample` of datanodes that run: what it draws over them, and what it says."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agent.cli.main import run
from suture.runtime.exit_codes import ExitCode
from tests.support.command_line import CommandLine
from tests.support.nursery import forked
from tests.support.storage.blocks_on_disk import newest_block
from tools.demo.cluster import Cluster

pytestmark = pytest.mark.slow

SECTIONS = "[scan]\nenabled = false\n"  # nothing but the sample finds damage
FILES = 6  # of a chunk each, on three datanodes
CHUNKS = 3 * FILES


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return three datanodes that scan nothing by themselves."""
    with Cluster(
        tmp_path_factory.mktemp("samples"),
        agents=3,
        volumes=1,
        agent_sections=SECTIONS,
        launch=forked,
    ) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def stored(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Store some files, each of one chunk."""
    files = tmp_path_factory.mktemp("files")
    for number in range(FILES):
        (files / f"file{number}").write_bytes(bytes([number]) * 50_000)
    assert ExitCode.OK == run(["put", str(files), "--close", "--scm", cluster.scm.address])


def counts_of(answer: Any) -> tuple[int, int, int]:
    """Return how many chunks there are, how many were read, and how many are bad."""
    return answer["size"]["chunk_count"], answer["read_count"], answer["bad_count"]


def test_a_clean_sample_of_a_cluster_says_a_probability(suture: CommandLine) -> None:
    """The sample is drawn from all datanodes as one lot. The output gives a probability, and
    does not claim verification.
    """
    answer = suture.json("scrub", "sample", "--seed", "1", "--fraction", "0.2")
    said = suture("scrub", "sample", "--seed", "1", "--fraction", "0.2")

    size = answer["size"]
    assert (CHUNKS, size["drawn_count"], 0) == counts_of(answer)
    assert 4 == size["bad_count"]
    assert 5 < size["drawn_count"] < CHUNKS
    assert 0.95 <= size["power"] < 1
    assert (0.95, 0.2, 1) == (answer["confidence"], answer["fraction"], answer["seed"])
    assert f"of {CHUNKS - size['drawn_count']} chunks nothing is known" in said
    assert f"P = {size['power']:.4%}" in said
    assert "verified" not in said + json.dumps(answer)


def test_sample_selects_a_datanode_by_id_prefix_or_address(
    cluster: Cluster, suture: CommandLine
) -> None:
    """Each form selects the same datanode, which holds a third of all replicas."""
    nodes = suture.json("scm", "nodes")["nodes"]
    [node_id, *_] = [node["datanode_id"] for node in nodes]

    for name in (node_id, node_id[:12], cluster.nodes[0].address):
        answer = suture.json("scrub", "sample", "--datanode", name, "--fraction", "1")
        assert (FILES, 1, 0) == counts_of(answer)


def test_invalid_sample_arguments_are_refused(cluster: Cluster, suture: CommandLine) -> None:
    """An unknown datanode, an unreachable one, a volume together with a datanode, and a fraction
    above 1 are refused.
    """
    assert (
        "WRONG_DATANODE"
        == suture.json("scrub", "sample", "--datanode", "zz", code=1)["error"]["code"]
    )
    gone = suture.json("scrub", "sample", "--datanode", "127.0.0.1:1", code=ExitCode.UNAVAILABLE)
    assert "UNAVAILABLE" == gone["error"]["code"]
    both = ("scrub", "sample", str(cluster.root), "--datanode", "zz")
    assert "MALFORMED_REQUEST" == suture.json(*both, code=ExitCode.FAILED)["error"]["code"]
    suture("scrub", "sample", "--fraction", "2", code=ExitCode.USAGE)


def test_a_bad_chunk_is_named_scanned_and_mended(cluster: Cluster, suture: CommandLine) -> None:
    """The output names the chunk and its datanode. The replica is scanned and repaired."""
    container_id = min(
        int(block.parents[1].name) for block in cluster.volume_paths(1)[0].rglob("*.block")
    )
    block = newest_block(cluster, 1, container_id)
    damaged = bytearray(block.read_bytes())
    damaged[700] ^= 1
    block.write_bytes(damaged)

    answer = suture.json("scrub", "sample", "--confidence", "99", code=ExitCode.TO_DO)

    assert (CHUNKS, CHUNKS, 1) == counts_of(answer)
    [bad] = answer["bad"]
    assert (container_id, int(block.stem), 0) == (
        bad["container_id"],
        bad["local_id"],
        bad["offset"],
    )
    assert ("CORRUPT", "CHUNK_CHECKSUM") == (bad["verdict"], bad["fault"])
    assert bad["datanode_id"] in {
        node["datanode_id"] for node in suture.json("scm", "nodes")["nodes"]
    }
    suture.wait_until(lambda: counts_of(suture.json_any("scrub", "sample", "--seed", "3"))[2] == 0)


def test_sample_reports_a_silent_datanode_and_reads_the_others(
    cluster: Cluster, suture: CommandLine
) -> None:
    """The statement excludes the replicas of the silent datanode, and the result is not clean."""
    cluster.nodes[2].stop()
    try:
        answer = suture.json("scrub", "sample", "--fraction", "1", code=ExitCode.TO_DO)
        said = suture("scrub", "sample", "--fraction", "1", code=ExitCode.TO_DO)
    finally:
        cluster.start_again(2)

    [silent] = answer["errors"]
    assert 2 * FILES == answer["size"]["chunk_count"]
    assert f"not drawn from: {silent[:8]} does not answer" in said


def test_a_sample_is_written_down(cluster: Cluster, suture: CommandLine) -> None:
    """Each datanode logs the caller and the parameters, as for a scan."""
    suture("scrub", "sample", "--fraction", "1", "--seed", "7")

    logs = [(cluster.root / f"datanode{number}.log").read_text() for number in (1, 2, 3)]
    assert all("SampleChunks" in log for log in logs)
