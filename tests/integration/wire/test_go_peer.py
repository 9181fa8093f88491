"""A program in another language reads what was stored, by the contract alone."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from merkle.checksum import Algorithm
from suture.wire.security.caller import Role
from suture.wire.security.tls import TlsFiles
from tests.support.authority import Authority
from tests.support.go_peer import GoPeer, built
from tests.support.secured_cluster import SecuredCluster, SecuredCommandLine
from tools.demo.damage import Target, flip_bit_under_warm_cache

pytestmark = pytest.mark.slow

SIZES = (1, 16_384, 1_000_000, 5_000_000)  # bytes: a window, some, and more than one chunk


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> GoPeer:
    """The peer, generated and built."""
    return built(tmp_path_factory.mktemp("go"))


@pytest.fixture(scope="module", params=[Algorithm.CRC32C, Algorithm.XXH3_64])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredCluster]:
    """A control plane and three agents whose trees fold by an algorithm."""
    root = tmp_path_factory.mktemp(str(request.param))
    authority = Authority(root / "tls")
    with SecuredCluster(root / "cluster", authority, request.param) as running:
        yield running


def test_a_peer_in_go_reads_and_verifies_what_was_put(
    peer: GoPeer, cluster: SecuredCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """
    Over mutual TLS, every byte of each file on each of three agents is as it was put, and every
    checksum, and with Ozone's algorithm every fold up to the root, is as the agents say. Of a
    replica with a flipped bit it names the window.
    """
    ada = cluster.authority.issue("ada", Role.ADMIN, Role.CLIENT)
    suture = SecuredCommandLine(cluster.scm.address, capsys, ada)
    files = cluster.authority.issue("go", Role.PEER)
    container_id, put = stored(suture, tmp_path)
    [tree] = suture.json("tree", str(container_id), "--datanode", cluster.nodes[0].address)[
        "replicas"
    ]

    answers = [peer.read(node.address, container_id, files) for node in cluster.nodes]

    for code, answer in answers:
        assert (0, []) == (code, answer["faults"])
        assert ("CLOSED", f"TREE_{cluster.algorithm.name}") == (
            answer["state"],
            answer["algorithm"],
        )
        assert put <= {block["sha256"] for block in answer["blocks"]}
        assert tree["root"] == answer["root"]
        assert "CONTAINER_NOT_FOUND" == answer["refusal"]["reason"]
        assert ("NotFound", "suture") == (answer["refusal"]["status"], answer["refusal"]["domain"])
    damaged_is_named(cluster, peer, files, container_id)


def stored(suture: SecuredCommandLine, folder: Path) -> tuple[int, set[str]]:
    """Put a file of each size into one container and close it; return it, and their checksums."""
    contents = [Random(size).randbytes(size) for size in SIZES]
    for number, content in enumerate(contents):
        (folder / f"{number}.bin").write_bytes(content)
    names = [str(folder / f"{number}.bin") for number in range(len(contents))]
    [container_id] = suture.json("put", *names, "--sessions", "1", "--close")["container_ids"]
    suture.wait_until_closed([container_id])
    return container_id, {sha256(content).hexdigest() for content in contents}


def damaged_is_named(
    cluster: SecuredCluster, peer: GoPeer, files: TlsFiles, container_id: int
) -> None:
    """Flip a bit on the first agent's disk; the peer says in which window, and no more."""
    _, whole = peer.read(cluster.nodes[0].address, container_id, files)
    large = max(whole["blocks"], key=lambda block: sum(c["length"] for c in block["chunks"]))
    first = large["chunks"][0]
    [root] = cluster.volume_paths(0)[0].glob(f"hdds/*/current/containerDir*/{container_id}")
    block_id, length = large["local_id"], first["length"]
    flip_bit_under_warm_cache(Target(container_id, root, (block_id,), (length,), (length,)))

    code, answer = peer.read(cluster.nodes[0].address, container_id, files)

    window = length // 2 // -(-length // first["window_count"])
    assert (1, [f"block {block_id}, offset 0: window {window} is damaged"]) == (
        code,
        answer["faults"],
    )
